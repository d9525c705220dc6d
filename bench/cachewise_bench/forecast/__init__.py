"""How good forecasts of waits are: the protocol, the methods compared, the command."""
