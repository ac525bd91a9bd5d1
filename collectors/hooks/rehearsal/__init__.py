"""Rehearsal: a script that wants accelerators, run where there are none, with nothing computed.

Loaded by path into the script's own interpreter, like ``hooks``: Python 3.8, the standard library
and the script's own torch. What is a parameter or lies on an accelerator is fake
(``torch._subclasses.fake_tensor``): it has a shape, a type and a device, and no memory. All else
is real: data, loaders, loops, schedules.

==============  ==============================================================================
module          what it does
==============  ==============================================================================
``start``       when a rehearsal begins and ends, and what it tells the recording
``shim``        makes a CPU build of torch accept fake tensors on ``cuda``
``mode``        runs every operator: real, known or fake
``values``      what a fake tensor answers when the script wants a number
``unknown``     shapes and results that depend on numbers that nobody computed
``parameters``  modules whose parameters are fake, and how they move
``cuda``        ``torch.cuda`` as a machine with accelerators would answer
``kernels``     the choices that torch makes on CUDA: attention, recurrent layers, foreach
``allocator``   the segments that the device's caching allocator takes for what lives
``ranks``       process groups of many ranks in one process
``overlay``     nothing is overwritten, nothing leaves the machine
``stubs``       packages that need CUDA to be imported
==============  ==============================================================================

Fake tensors, the fake process group and ``register_fake`` are torch's own parts
(``torch._subclasses``, ``torch.testing._internal.distributed.fake_pg``); the device guard is
registered by the official macro (``c10/core/impl/DeviceGuardImplInterface.h``).
"""
