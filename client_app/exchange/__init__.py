"""One exchange from the side of a client: the task, the model, the update on its way up."""
