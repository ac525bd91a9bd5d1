from .program import VERBS as VERBS
from .program import app as app
from .program import load_verb as load_verb
from .program import main as main
