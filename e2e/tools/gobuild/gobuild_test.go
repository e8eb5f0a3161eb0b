package gobuild

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// module writes a module of one command.
func module(t *testing.T, source string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module example\n\ngo 1.26\n", "main.go": source} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestBuild(t *testing.T) {
	const hello = "package main\n\nvar who = \"nobody\"\n\nfunc main() { print(who) }\n"
	out := filepath.Join(t.TempDir(), "hello")
	err := Build(t.Context(), Options{Dir: module(t, hello), Package: ".", Out: out, LDFlags: "-X main.who=linker"})
	if err != nil {
		t.Fatal(err)
	}
	said, err := exec.Command(out).CombinedOutput()
	if err != nil || string(said) != "linker" {
		t.Errorf("the program says %q, %v", said, err)
	}
}

func TestBuildTellsWhatTheCompilerSaid(t *testing.T) {
	err := Build(t.Context(), Options{Dir: module(t, "package main\n\nfunc main() { undefinedThing() }\n"), Package: ".", Out: filepath.Join(t.TempDir(), "x")})
	if err == nil || !strings.Contains(err.Error(), "undefinedThing") {
		t.Errorf("error = %v, want the compiler's message", err)
	}
}

func TestBuildNeedsItsOptions(t *testing.T) {
	for _, o := range []Options{{Package: ".", Out: "x"}, {Dir: ".", Out: "x"}, {Dir: ".", Package: "."}} {
		if err := Build(t.Context(), o); err == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
}

func TestLockIsExclusive(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := Lock(t.Context(), path, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var told bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := Lock(ctx, path, &told); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("second lock: %v, want the deadline", err)
	}
	if n := strings.Count(told.String(), "waiting"); n != 1 {
		t.Errorf("told %d times of the wait, want once: %q", n, told.String())
	}
	unlock()
	unlock, err = Lock(t.Context(), path, io.Discard)
	if err != nil {
		t.Fatalf("after unlock: %v", err)
	}
	unlock()
}

func TestCacheDir(t *testing.T) {
	t.Setenv("REFVOL_CACHE", "/given")
	if dir, err := CacheDir(); dir != "/given" || err != nil {
		t.Errorf("with REFVOL_CACHE: %q, %v", dir, err)
	}
	t.Setenv("REFVOL_CACHE", "")
	t.Setenv("XDG_CACHE_HOME", "/home/x/.cache")
	if dir, err := CacheDir(); dir != "/home/x/.cache/refvol" || err != nil {
		t.Errorf("without: %q, %v", dir, err)
	}
}
