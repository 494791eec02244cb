"""Models and versions of transformers that our own forward does not know are run by transformers' own."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from plaudit.contracts import check_judge
from plaudit.errors import JudgeError, PlauditError
from plaudit.judges.vlm import local
from plaudit.judges.vlm.chat_template import image
from plaudit.judges.vlm.config import VlmJudgeConfig
from plaudit.judges.vlm.prompt import ANSWER_TOKENS, build_prompt, conversation
from tiny_llava import save_llava
from tiny_vlm import TEMPLATE, moving


@pytest.fixture(scope="module")
def llava(tmp_path_factory):
    return save_llava(tmp_path_factory.mktemp("llava"))


def backend_of(folder, **settings):
    return VlmJudgeConfig(model=str(folder), image_size=64, **settings).load_backend()


def one_chat_a_frame(folder, backend, episode):
    """Logits of each frame, by transformers alone and each of a chat of its own that ends there."""
    import transformers

    processor = transformers.AutoProcessor.from_pretrained(folder)
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder)
    prompt, found = build_prompt(backend.config, episode), []
    for count in range(1, prompt.num_frames + 1):
        text = processor.apply_chat_template(conversation(prompt, count, image), add_generation_prompt=True)
        frames = [frame for moment in zip(*map(prompt.images, prompt.frames)) for frame in moment]
        inputs = processor(
            text=[text],
            images=frames[: count * len(prompt.frames)],
            return_tensors="pt",
            add_special_tokens=False,
        )
        with torch.no_grad():
            said = model(**inputs).logits[0, -1].log_softmax(0).exp()
        ids = {word: processor.tokenizer(list(forms))["input_ids"] for word, forms in ANSWER_TOKENS.items()}
        first = {word: sorted({one[0] for one in ids[word] if len(one) == 1}) for word in ("yes", "no")}
        yes, no = (said[first[word]].sum() for word in ("yes", "no"))
        found.append(float(yes.log() - no.log()))
    return found


@pytest.mark.parametrize("episode", [moving(steps=4), moving(steps=1), moving(steps=2, cameras=("front", "wrist"))])
def test_a_model_of_another_kind_is_scored_in_one_pass_as_in_a_chat_for_each_frame(llava, episode):
    backend = backend_of(llava)
    (scores,) = backend.score([episode])
    assert len(scores) == episode.steps + 1
    assert not isinstance(scores, PlauditError)
    assert_allclose(scores, one_chat_a_frame(llava, backend, episode), atol=1e-4)


def test_the_user_is_told_which_forward_is_used(llava):
    (warning,) = backend_of(llava).warnings
    assert "is a 'llava' and no Qwen3-VL; transformers' own forward scores its frames" in warning


def test_it_keeps_the_contract_of_a_judge(llava):
    judge = VlmJudgeConfig(model=str(llava), image_size=64).build()
    check_judge(judge, [moving(), moving(task=""), moving(steps=2, padded="first")])


def test_words_are_generated_and_parsed(llava):
    explanation = backend_of(llava, max_new_tokens=4).explain(moving(steps=2))
    assert explanation.text and explanation.answer is None
    assert "does not end in 'Answer: Yes'" in (explanation.error or "")
    assert "has no task text" in (backend_of(llava).explain(moving(task="")).error or "")


def test_a_template_that_rewrites_turns_is_an_error_of_the_episode(tmp_path):
    thinking = TEMPLATE + "{%- if add_generation_prompt %}{{- '<think>\\n' }}{%- endif %}"
    (error,) = backend_of(save_llava(tmp_path, thinking)).score([moving(steps=3)])
    assert isinstance(error, JudgeError) and "changes turns once others follow" in str(error)


def test_a_version_of_transformers_that_is_not_known_runs_its_own_forward(make_scorer, scorer, monkeypatch):
    def renamed(visual, *_):
        raise AttributeError("'Qwen3VLVisionModel' object has no attribute 'blocks'")

    monkeypatch.setattr(local, "Vision", renamed)
    other, episodes = make_scorer(), [moving(3), moving(5, seed=1), moving(2, cameras=("a", "b"), size=(48, 96))]
    assert "this version of transformers is not known here" in other.warnings[0]
    for one, known in zip(other.score(episodes), scorer.score(episodes), strict=True):
        assert_allclose(one, known, atol=1e-4)
    assert other.fingerprint == scorer.fingerprint


def test_a_qwen3_vl_of_another_build_is_not_run_by_our_forward():
    described = SimpleNamespace(
        model_type="qwen3_vl",
        text_config=SimpleNamespace(hidden_act="silu", attention_bias=False),
        vision_config=SimpleNamespace(
            hidden_act="gelu_pytorch_tanh", patch_size=14, spatial_merge_size=2, temporal_patch_size=2
        ),
    )
    assert local.unknown_part("mine", described) == (
        "'mine' has vision_config.patch_size 14, where every published Qwen3-VL has 16"
    )


def test_the_same_episode_gets_the_same_logits_twice(llava):
    backend = backend_of(llava)
    one, other = backend.score([moving(), moving()])
    assert_array_equal(one, other)
    assert not isinstance(one, PlauditError) and np.ptp(one) > 0
