package main

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestWhatIsLinked names packages that doubled the size of the binary, and its resident memory. Each of them came with an import of a few
// functions.
func TestWhatIsLinked(t *testing.T) {
	output, err := exec.CommandContext(t.Context(), "go", "list", "-tags", "grpcnotrace", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	linked := strings.Fields(string(output))
	if !slices.Contains(linked, "k8s.io/client-go/rest") {
		t.Fatalf("go list says nothing of k8s.io/client-go/rest: %q", linked)
	}
	for prefix, instead := range map[string]string{
		"k8s.io/client-go/kubernetes":          "pkg/apiclient",
		"k8s.io/client-go/applyconfigurations": "pkg/apiclient",
		"k8s.io/client-go/discovery":           "pkg/apiclient",
		"k8s.io/client-go/informers":           "pkg/manager",
		"k8s.io/client-go/tools/cache":         "pkg/manager",
		"k8s.io/client-go/tools/portforward":   "cmd/kubectl-refvol",
		"k8s.io/client-go/transport/websocket": "cmd/kubectl-refvol",
		"k8s.io/streaming":                     "cmd/kubectl-refvol",
		"k8s.io/kubectl":                       "a function of its own",
		"k8s.io/kubernetes":                    "a function of its own",
		// The template packages keep the linker from removing unused methods.
		"html/template":          "the build tag grpcnotrace",
		"golang.org/x/net/trace": "the build tag grpcnotrace",
	} {
		for _, path := range linked {
			if path == prefix || strings.HasPrefix(path, prefix+"/") {
				t.Errorf("%s is linked; use %s", path, instead)
				break
			}
		}
	}
}
