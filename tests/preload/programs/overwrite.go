// overwrite FILE TEXT: as overwrite.c, in a language that makes its system calls itself, in a program that has libc as well.
package main

import "C"
import "os"

func main() {
	if os.WriteFile(os.Args[1], []byte(os.Args[2]), 0o666) != nil {
		os.Exit(1)
	}
}
