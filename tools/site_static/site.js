// A box that scrolls sideways can be reached, and so scrolled, by keyboard.
