"""What messages say about choices."""

from plaudit.errors import did_you_mean


def test_a_message_lists_few_choices_and_finds_the_similar_one_among_many():
    many = [f"episode_{i:04}.json" for i in range(1000)]
    said = did_you_mean("policy", many)
    assert said.startswith("known: episode_0000.json, ") and said.endswith("episode_0039.json and 960 more")
    assert did_you_mean("episode_0999.jsn", many) == "did you mean 'episode_0999.json'?"
    assert did_you_mean("x", ["b", "a"]) == "known: a, b"
