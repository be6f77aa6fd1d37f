"""What is recorded: 24 chats in six calls of four, four more with a system message, and samples.

python -m parity record --site chats=parity.proof.real.old:answer -- python -m parity.proof.real.script
"""

from __future__ import annotations

from parity.models import real_model
from parity.models.tasks import FORMS, TOPICS
from parity.proof.real.old import answer, sample
from parity.record.observe import case

LIBRARIAN = "You are a librarian. Answer in one sentence, and name a book that the reader could borrow."


def main() -> None:
    model = str(real_model.folder())
    for number, topic in enumerate(TOPICS[:6]):
        with case(f"chats-{number}"):
            answer(model, [form.format(topic) for form in FORMS])
    with case("librarian"):
        answer(model, [f"What should I read about {topic}?" for topic in TOPICS[:4]], system=LIBRARIAN)
    for number, topic in enumerate(TOPICS[:3]):
        with case(f"samples-{number}"):
            sample(model, f"Tell me something about {topic}.", seed=number)


if __name__ == "__main__":
    main()
