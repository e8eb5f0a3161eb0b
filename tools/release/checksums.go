package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// writeChecksums writes the file that `sha256sum --check` reads.
func writeChecksums(dir string) error {
	entries, err := os.ReadDir(dir) // in the order of the names
	if err != nil {
		return err
	}
	var lines strings.Builder
	for _, e := range entries {
		content, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&lines, "%x  %s\n", sha256.Sum256(content), e.Name())
	}
	return write(dir, "SHA256SUMS", []byte(lines.String()))
}
