"""The verifier of GPU kernels: what is proved about Target IR before it is written as PTX.

`kernel.check_kernel` is the whole check; `rules` and `flow` are the numbered rules, `uniform` says
what threads agree on, `lints` what accesses cost. Below them, from the bottom: `index` and `truth`
are integers and conditions of all threads at once, `values` what ops compute, `access` where they
touch memory, `trace` (with `recurrence`) runs a kernel on them, `state` keeps what is open at a
point, `meeting` and `races` decide who meets whom, `blocks` across blocks, `objects` bounds and
lifetimes, `phases` barriers in memory.
"""
