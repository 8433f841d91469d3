"""What every operation of the controller goes through: questions, effects, events, and changes of the store."""
