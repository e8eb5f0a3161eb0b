package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"

	"github.com/refvol/refvol/e2e/tools/gobuild"
	"github.com/refvol/refvol/internal/sandbox"
)

// Sandbox is sandbox.Enter for programs that build others: what they build is kept, and what go
// downloads and compiles. Of the machine they may change the directories of keep too.
func Sandbox(keep ...string) (status int, inside bool, err error) {
	return sandbox.Enter(sandbox.Options{Keep: func() ([]string, error) {
		caches, err := caches(context.Background())
		return append(caches, keep...), err
	}})
}

// caches returns the directories that outlive a sandbox. Where there is no go, nothing is built.
func caches(ctx context.Context) ([]string, error) {
	if _, err := exec.LookPath("go"); err != nil {
		return nil, nil //nolint:nilerr // As said above.
	}
	own, err := gobuild.CacheDir()
	if err != nil {
		return nil, err
	}
	text, err := gobuild.Go(ctx, ".", nil, "env", "-json", "GOCACHE", "GOMODCACHE")
	if err != nil {
		return nil, err
	}
	var of struct{ GOCACHE, GOMODCACHE string }
	if err := json.Unmarshal([]byte(text), &of); err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	return []string{own, of.GOCACHE, of.GOMODCACHE}, nil
}

// EnterCommand returns the start of a command line that runs a program in the
// sandbox of this process, for the person who started it.
func EnterCommand() (string, error) {
	pid, err := sandbox.PID()
	if err != nil {
		return "", err
	}
	mapped, err := idMap("/proc/self/uid_map")
	if err != nil {
		return "", err
	}
	command := fmt.Sprintf("nsenter --target %s --mount", pid)
	if !mapped.everything() {
		command += " --user --preserve-credentials"
	}
	return command, nil
}

// IsRoot says whether this process is root of the machine, not only of a user namespace.
func IsRoot() bool {
	mapped, err := idMap("/proc/self/uid_map")
	return err == nil && os.Geteuid() == 0 && mapped.everything()
}

// mapping is the first line of a user namespace's map of ids.
type mapping struct{ inside, outside, size int }

// everything tells whether the namespace is the initial one, or one as good.
func (m mapping) everything() bool { return m.inside == 0 && m.outside == 0 && m.size > 1 }

func idMap(path string) (mapping, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return mapping{}, err
	}
	var m mapping
	if _, err := fmt.Sscan(string(data), &m.inside, &m.outside, &m.size); err != nil {
		return mapping{}, fmt.Errorf("parse %s: %w", path, err)
	}
	return m, nil
}
