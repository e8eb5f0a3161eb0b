package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDockerfile wants the toolchain of go.mod, in an image that nobody can exchange, and all that it copies in the build's context.
func TestDockerfile(t *testing.T) {
	text, goMod := readRoot(t, "Dockerfile"), readRoot(t, "go.mod")
	version := regexp.MustCompile(`\ntoolchain go(\d+\.\d+\.\d+)\n`).FindStringSubmatch(goMod)
	if version == nil || !strings.Contains(readRoot(t, "cmd/kubectl-refvol/go.mod"), version[0]) {
		t.Fatalf("go.mod and cmd/kubectl-refvol/go.mod don't name the same toolchain: %q", version)
	}
	image := regexp.MustCompile(`\nARG GO_IMAGE=docker\.io/library/golang:(\S+)@sha256:[0-9a-f]{64}\n`).FindStringSubmatch(text)
	if image == nil || image[1] != version[1] {
		t.Errorf("the base image is not golang:%s with a digest: %q", version[1], image)
	}
	for _, source := range regexp.MustCompile(`(?m)^COPY ([^-].*) \S+$`).FindAllStringSubmatch(text, -1) {
		for name := range strings.FieldsSeq(source[1]) {
			if !strings.Contains(readRoot(t, ".dockerignore"), "\n!"+name+"\n") {
				t.Errorf(".dockerignore leaves out %s", name)
			}
		}
	}
}

func readRoot(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(checkout(t), name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
