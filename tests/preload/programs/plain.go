// Reads files by their names, in a language that makes its system calls itself.
package main

import "os"

func main() {
	for _, name := range os.Args[1:] {
		text, err := os.ReadFile(name)
		if err != nil {
			os.Exit(1)
		}
		os.Stdout.Write(text)
	}
}
