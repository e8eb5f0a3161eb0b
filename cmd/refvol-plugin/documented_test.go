package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestDocumentedTimes: docs/limits.md says how long a request waits on a connection without an answer.
func TestDocumentedTimes(t *testing.T) {
	text, err := os.ReadFile("../../docs/limits.md")
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("(%v s if the host is gone) | %v s |", unackedTimeout.Seconds(), (pingAfter + pingTimeout).Seconds())
	if !strings.Contains(string(text), want) {
		t.Errorf("docs/limits.md doesn't say %q", want)
	}
}
