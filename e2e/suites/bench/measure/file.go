package measure

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Machine is where a report was made.
type Machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Memory uint64 `json:"memoryBytes"`
	Kernel string `json:"kernel"`
	OS     string `json:"os"`
}

// File is a results.json.
type File struct {
	Time     time.Time         `json:"time"`
	Machine  Machine           `json:"machine"`
	Versions map[string]string `json:"versions"`
	Goals    []Outcome         `json:"goals"`
	Results  []Result          `json:"results"`
}

// ThisMachine describes the machine that the program runs on.
func ThisMachine() (Machine, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return Machine{}, fmt.Errorf("uname: %w", err)
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return Machine{}, fmt.Errorf("sysinfo: %w", err)
	}
	return Machine{
		CPU:    field("/proc/cpuinfo", "model name", ":"),
		Cores:  runtime.NumCPU(),
		Memory: info.Totalram * uint64(info.Unit),
		Kernel: unix.ByteSliceToString(name.Release[:]),
		OS:     strings.Trim(field("/etc/os-release", "PRETTY_NAME", "="), `"`),
	}, nil
}

// field returns the value of the first line of a file that has the name before the
// separator, or "unknown".
func field(path, name, separator string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return "unknown"
	}
	for line := range strings.Lines(string(text)) {
		key, value, ok := strings.Cut(line, separator)
		if ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

// Versions returns the version of Go and of each of the modules that is built into the
// program.
func Versions(modules ...string) map[string]string {
	out := map[string]string{"go": runtime.Version()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return out
	}
	for _, m := range info.Deps {
		if slices.Contains(modules, m.Path) {
			out[m.Path] = m.Version
		}
	}
	return out
}

// ReadFile reads a results.json; there being none gives an empty one.
func ReadFile(path string) (File, error) {
	var f File
	err := read(path, &f)
	return f, err
}

// Write writes a results.json. A result takes the place of the one of its name that the
// file had before, an outcome that of the goal's before, and all others of old stay: a run
// of one scenario renews that one's.
func (f File) Write(path string, old File) error {
	f.Results = renew(old.Results, f.Results, func(r Result) string { return r.Name })
	f.Goals = renew(old.Goals, f.Goals, func(o Outcome) string { return o.Result + " " + o.Figure + " " + o.Bound() })
	return write(path, f)
}

// renew returns old with what now has of the same key in its place, sorted by key.
func renew[T any](old, now []T, key func(T) string) []T {
	renewed := make(map[string]bool, len(now))
	for _, t := range now {
		renewed[key(t)] = true
	}
	all := append(slices.DeleteFunc(slices.Clone(old), func(t T) bool { return renewed[key(t)] }), now...)
	slices.SortStableFunc(all, func(a, b T) int { return strings.Compare(key(a), key(b)) })
	return all
}

// ReadSamples reads what WriteSamples wrote; there being none gives an empty map.
func ReadSamples(path string) (map[string][]float64, error) {
	samples := map[string][]float64{}
	err := read(path, &samples)
	return samples, err
}

// WriteSamples writes the samples that plots are made of, as Write does the results.
func WriteSamples(path string, old, now map[string][]float64) error {
	all := make(map[string][]float64, len(old)+len(now))
	for name, samples := range old {
		all[name] = samples
	}
	for name, samples := range now {
		all[name] = samples
	}
	return write(path, all)
}

func read(path string, into any) error {
	text, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

// write replaces a file whole or not at all.
func write(path string, from any) error {
	text, err := json.MarshalIndent(from, "", " ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	temporary := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".tmp")
	err = os.WriteFile(temporary, append(text, '\n'), 0o644)
	if err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
