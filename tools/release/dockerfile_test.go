package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDockerfile wants the toolchain of go.mod, which compiles for the image's platform on the builder's own, the build that make image does, and an image of the
// plugin alone that starts it as root. Root is needed for mounts.
func TestDockerfile(t *testing.T) {
	text, goMod := readRoot(t, "Dockerfile"), readRoot(t, "go.mod")
	version := regexp.MustCompile(`\ntoolchain go(\d+\.\d+\.\d+)\n`).FindStringSubmatch(goMod)
	if version == nil || !strings.Contains(readRoot(t, "cmd/kubectl-refvol/go.mod"), version[0]) {
		t.Fatalf("go.mod and cmd/kubectl-refvol/go.mod don't name the same toolchain: %q", version)
	}
	build, image, two := strings.Cut(text, "\nFROM scratch\n")
	if !two || strings.Contains(image, "\nFROM ") {
		t.Fatal("the last stage is not from scratch")
	}
	for _, line := range []string{"ARG GO_IMAGE=docker.io/library/golang:" + version[1], "FROM --platform=$BUILDPLATFORM $GO_IMAGE AS build", `RUN GOOS="$TARGETOS" GOARCH="$TARGETARCH" make build-plugin VERSION="$VERSION" REVISION="$REVISION"`} {
		if !strings.Contains(build, "\n"+line+"\n") {
			t.Errorf("the build lacks the line %s", line)
		}
	}
	for _, line := range []string{"COPY --from=build /src/bin/refvol-plugin /refvol-plugin", "USER 0", `ENTRYPOINT ["/refvol-plugin"]`} {
		if !strings.Contains(image, "\n"+line+"\n") {
			t.Errorf("the image lacks the line %s", line)
		}
	}
	if strings.Count(image, "COPY ") != 1 || strings.Contains(image, "RUN ") || strings.Contains(image, "ADD ") {
		t.Error("the image has more than the plugin")
	}
	for _, source := range regexp.MustCompile(`(?m)^COPY (.*) \S+$`).FindAllStringSubmatch(build, -1) {
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
