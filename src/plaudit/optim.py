"""Adam and AdamW of torch, in a process that does not load torch's compiler.

    optimizer = AdamW(net.parameters(), lr=3e-4, fused=True)

torch tells its compiler to leave the methods of optimizers alone, and imports the whole compiler to say so when the
first optimizer is made: 820 modules, 1.7 s on a small machine and 70 MB of memory in every process that trains. Nothing
here compiles an optimizer, so these classes take the same methods without that word to the compiler.
"""

from inspect import unwrap

import torch


class Adam(torch.optim.Adam):
    """`torch.optim.Adam`; it must not be called within a function that `torch.compile` compiles."""

    add_param_group = unwrap(torch.optim.Adam.add_param_group)
    zero_grad = unwrap(torch.optim.Adam.zero_grad)
    state_dict = unwrap(torch.optim.Adam.state_dict)
    load_state_dict = unwrap(torch.optim.Adam.load_state_dict)
    step = torch.no_grad()(unwrap(torch.optim.Adam.step))


class AdamW(Adam, torch.optim.AdamW):
    """`torch.optim.AdamW`, likewise."""
