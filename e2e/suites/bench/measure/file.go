package measure

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// Machine is where a report was made.
type Machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Memory uint64 `json:"memoryBytes"`
	Kernel string `json:"kernel"`
}

// File is a results.json.
type File struct {
	Time     time.Time         `json:"time"`
	Machine  Machine           `json:"machine"`
	Versions map[string]string `json:"versions"`
	Results  []Result          `json:"results"`
}

// ReadFile reads a results.json; there being none gives an empty one.
func ReadFile(path string) (f File, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &f)
	}
	if err != nil {
		return f, fmt.Errorf("read %s: %w", path, err)
	}
	return f, nil
}

// Renew adds what this program measured on this machine to a results.json. A result takes the place of the one of its
// name that the file had before, and all others stay: a run of one scenario renews that one's. The file is replaced
// whole or not at all.
func Renew(path string, results []Result) error {
	f, err := ReadFile(path)
	if err != nil {
		return err
	}
	f.Time, f.Versions = time.Now().UTC().Truncate(time.Second), map[string]string{"go": runtime.Version()}
	if f.Machine, err = thisMachine(); err != nil {
		return err
	}
	f.Results = append(slices.DeleteFunc(f.Results, func(old Result) bool {
		return slices.ContainsFunc(results, func(r Result) bool { return r.Name == old.Name })
	}), results...)
	slices.SortFunc(f.Results, func(a, b Result) int { return strings.Compare(a.Name, b.Name) })
	text, err := json.MarshalIndent(f, "", " ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	if err := os.WriteFile(path+".tmp", append(text, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}

// thisMachine describes the machine that the program runs on.
func thisMachine() (Machine, error) {
	var name unix.Utsname
	var info unix.Sysinfo_t
	proc, err := procfs.NewDefaultFS()
	if err := errors.Join(err, os.NewSyscallError("uname", unix.Uname(&name)), os.NewSyscallError("sysinfo", unix.Sysinfo(&info))); err != nil {
		return Machine{}, err
	}
	processors, err := proc.CPUInfo()
	if err != nil {
		return Machine{}, err
	}
	return Machine{
		CPU: processors[0].ModelName, Cores: runtime.NumCPU(), Memory: info.Totalram * uint64(info.Unit),
		Kernel: unix.ByteSliceToString(name.Release[:]),
	}, nil
}

// WriteTable puts what came of the goals that were measured into a Markdown document, in the place of the table that
// it has.
func (f File) WriteTable(document string, goals []Goal) error {
	const begin, end = "<!-- made by make bench-table: begin -->\n", "<!-- made by make bench-table: end -->\n"
	text, err := os.ReadFile(document)
	if err != nil {
		return err
	}
	before, rest, begun := bytes.Cut(text, []byte(begin))
	_, after, ended := bytes.Cut(rest, []byte(end))
	if !begun || !ended {
		return errors.New(document + ": has no place for a table")
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s%s\nThe last run was %s on %d cores of %s, %.0f GiB, Linux %s, %s.\n\n| scenario | figure | measured | goal | |\n|---|---|---|---|---|\n",
		before, begin, f.Time.Format("2006-01-02 15:04 MST"), f.Machine.Cores, f.Machine.CPU, float64(f.Machine.Memory)/(1<<30), f.Machine.Kernel, f.Versions["go"])
	for _, g := range goals {
		if o, err := g.Check(f.Results); err == nil {
			fmt.Fprintln(&b, o)
		}
	}
	fmt.Fprintf(&b, "\n%s%s", end, after)
	return os.WriteFile(document, b.Bytes(), 0o644)
}
