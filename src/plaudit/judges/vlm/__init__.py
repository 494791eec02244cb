"""A vision-language model that judges episodes frame by frame, in this process or behind an endpoint.

config.py      what a user sets
prompt.py      what is asked, as a chat; the same for both backends
images.py      frames to the size the model sees, to patches, to data: URLs

local.py       in this process: batches by token budget, out of memory, reasoning
  loading.py     a folder of the hub to weights, tokenizer and fingerprint
  layout.py      a chat to tokens and positions, and where each answer is read
  vision.py      frames to features
  decoder.py     tokens and features to log-odds, all frames of many episodes in one pass

endpoint.py    through any server that speaks the OpenAI protocol
audit.py       its reasons in words, for a person
"""
