"""What AdaReg costs, measured side by side with what it replaces: ``adareg bench``."""
