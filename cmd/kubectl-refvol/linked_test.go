package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestWhatIsLinked: a go-template may call any exported method, so the linker keeps them all, and the program has 54 MB instead of 32. Kustomize
// would add to that. The test checks what the linker has kept, and not what is imported.
func TestWhatIsLinked(t *testing.T) {
	program := t.TempDir() + "/kubectl-refvol"
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as released: with cgo, kustomize's plugins keep every method too
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	symbols, err := exec.CommandContext(t.Context(), "go", "tool", "nm", program).Output()
	if err != nil {
		t.Fatal(err)
	}
	text := string(symbols)
	if !strings.Contains(text, " k8s.io/client-go/rest.") {
		t.Fatal("go tool nm says nothing of k8s.io/client-go/rest")
	}
	for symbol, instead := range map[string]string{
		" sigs.k8s.io/kustomize/api/krusty.(*Kustomizer).Run": "kubectl kustomize",
	} {
		if strings.Contains(text, symbol) {
			t.Errorf("%s is linked; use %s", strings.TrimSpace(symbol), instead)
		}
	}
}
