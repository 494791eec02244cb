"""The slow way, to compare with: transformers' own image processor and forward, on one chat at a time."""

import base64
import io
import math

import torch
import transformers
from PIL import Image


class Plain:
    def __init__(self, folder):
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.model = transformers.Qwen3VLForConditionalGeneration.from_pretrained(folder).eval()
        self.processor = transformers.Qwen2VLImageProcessorPil(
            patch_size=16,
            image_mean=[0.5] * 3,
            image_std=[0.5] * 3,
            size={"shortest_edge": 32 * 32, "longest_edge": 10**7},
        )

    def inputs(self, messages):
        """Of a chat whose images are data: URLs."""
        urls = [
            part["image_url"]["url"]
            for m in messages
            for part in m["content"]
            if isinstance(part, dict) and "image_url" in part
        ]
        images = [Image.open(io.BytesIO(base64.b64decode(url.split(",")[1]))) for url in urls]
        seen = self.processor(images, return_tensors="pt")
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        head, *rest = text.split("<|image_pad|>")
        counts = [math.prod(grid) // 4 for grid in seen["image_grid_thw"].tolist()]
        for count, more in zip(counts, rest, strict=True):
            head += "<|image_pad|>" * count + more
        ids = self.tokenizer(head, return_tensors="pt", add_special_tokens=False)["input_ids"]
        types = (ids == self.tokenizer.convert_tokens_to_ids("<|image_pad|>")).int()
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "mm_token_type_ids": types, **seen}

    @torch.no_grad()
    def logprobs(self, messages):
        """[V] of the word after a chat."""
        return self.model(**self.inputs(messages)).logits[0, -1].log_softmax(0)

    def logit(self, messages):
        """Summed over every token of the vocabulary that spells yes, or no, whatever its case and the space before."""
        said = self.logprobs(messages).exp()
        words = self.tokenizer.batch_decode([[token] for token in range(len(said))])
        yes, no = (sum(p for p, word in zip(said, words) if word.lower().removeprefix(" ") == w) for w in ("yes", "no"))
        return math.log(yes) - math.log(no)
