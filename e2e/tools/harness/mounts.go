package harness

import (
	"bufio"
	"fmt"
	"os"
	"strings"
)

// Mount is one line of a mountinfo file.
type Mount struct {
	// ID is the mount's id, unique among the mounts that exist now.
	ID string
	// Target is the mount point.
	Target string
	// Options are the mount's own, SuperOptions the file system's.
	Options, SuperOptions string
	// Type and Source are the file system's type and what it was mounted from.
	Type, Source string
}

// Mounts returns the mounts of this process's namespace.
func Mounts() ([]Mount, error) { return mountsIn("/proc/self/mountinfo") }

// MountsBelow returns the mounts whose target is dir or below it.
func MountsBelow(dir string) ([]Mount, error) {
	all, err := Mounts()
	if err != nil {
		return nil, err
	}
	var below []Mount
	for _, m := range all {
		if m.Target == dir || strings.HasPrefix(m.Target, dir+"/") {
			below = append(below, m)
		}
	}
	return below, nil
}

func mountsIn(path string) ([]Mount, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var mounts []Mount
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		m, err := parseMount(lines.Text())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		mounts = append(mounts, m)
	}
	return mounts, lines.Err()
}

// parseMount reads one line: id parent major:minor root target options [optional
// fields] - type source superoptions.
func parseMount(line string) (Mount, error) {
	before, after, ok := strings.Cut(line, " - ")
	// The kernel escapes a space, and not the other characters that are blank.
	head, tail := strings.Split(before, " "), strings.Split(after, " ")
	if !ok || len(head) < 6 || len(tail) < 3 {
		return Mount{}, fmt.Errorf("not a line of mountinfo: %q", line)
	}
	return Mount{
		ID:           head[0],
		Target:       unescape(head[4]),
		Options:      head[5],
		Type:         tail[0],
		Source:       unescape(tail[1]),
		SuperOptions: tail[2],
	}, nil
}

// unescape undoes the kernel's octal escapes of the four characters that would break
// a line apart.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}
