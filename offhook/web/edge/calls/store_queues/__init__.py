"""What is done for calls from queues of the store: webhooks, mail, uploads, analyses, campaigns."""
