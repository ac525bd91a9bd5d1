from .guard import Keys as Keys
from .serve import Server as Server
from .serve import ended_by_signals as ended_by_signals
from .serve import listening_socket as listening_socket
