package harness

import (
	"fmt"
	"os"
)

// EnterCommand returns the start of a command line that runs a program in the
// sandbox of this process, for the person who started it.
func EnterCommand() (string, error) {
	mapped, err := idMap("/proc/self/uid_map")
	if err != nil {
		return "", err
	}
	command := fmt.Sprintf("nsenter --target %s --mount", os.Getenv("REFVOL_SANDBOX_PID"))
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
