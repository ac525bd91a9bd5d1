"""Recipes of training tools: a file that says what is trained becomes the answers to options.

``recipe`` reads one: Axolotl, LLaMA-Factory, torchtune, TRL, LitGPT, torchtitan, Megatron-LM,
NeMo, or a file that starts one of these. A reader knows one tool: what its keys mean, and what it
does where nothing is said.
"""

from advisor.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
