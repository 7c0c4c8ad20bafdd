"""What a person does with a model that a run left: ask it (`predict`), hand it on (`export`), describe it (`card`)."""
