"""A vision-language model that judges episodes frame by frame, in this process or behind a server.

config.py        what a user sets, and how the judge is built from it
judge.py         the judge, and what it needs of a backend: score frames, explain episodes
prompt.py        what is asked, as a chat; the same for all backends
images.py        frames to the size the model sees, to patches, to data: URLs

local.py         a Qwen3-VL in this process: batches by tokens, out of memory, explanations
  loading.py       a folder of the hub to weights, tokenizer and fingerprint
  chat_template.py a chat to tokens and positions, and where each answer is read
  qwen3_vl.py      our own forward: all frames of many episodes in one pass
processor.py     any other model, by transformers' own processor and forward
adapter.py       what a model learned from labels: a folder that describes itself, put into the model
tune.py          the training that makes one
endpoint.py      any server that speaks the OpenAI protocol

explain.py       explanations in words, for people
"""
