"""What the tests of exercises say of an answer: right with which remarks, wrong with which misconception and reply."""

from tpviz import exercises


def said_right(name, answer):
    feedback = exercises.check(name, answer)
    assert feedback.status == "right", feedback.text
    return feedback.sentences[1:]


def said_wrong(name, answer):
    feedback = exercises.check(name, answer)
    assert feedback.status == "wrong", feedback.text
    return feedback.misconception, feedback.text
