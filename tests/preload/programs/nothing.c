// Starts and ends.
int main(void) { return 0; }
