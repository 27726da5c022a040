"""For all tests, the notebooks' cells among them: they run in the words of the code, whatever the machine speaks."""

import os

os.environ["LANGUAGE"] = "en"
