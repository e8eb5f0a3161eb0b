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

// Run is when, where and with what results were measured.
type Run struct {
	Time    time.Time `json:"time"`
	Machine Machine   `json:"machine"`
	Go      string    `json:"go"`
}

// File is a results.json.
type File struct {
	// Runs are those that results are of, the oldest first.
	Runs    []Run    `json:"runs"`
	Results []Result `json:"results"`
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
	run := Run{Time: time.Now().UTC().Truncate(time.Second), Go: runtime.Version()}
	if run.Machine, err = thisMachine(); err != nil {
		return err
	}
	f.Results = slices.DeleteFunc(f.Results, func(old Result) bool {
		return slices.ContainsFunc(results, func(r Result) bool { return r.Name == old.Name })
	})
	for _, r := range results {
		r.Run = run.Time
		f.Results = append(f.Results, r)
	}
	slices.SortFunc(f.Results, func(a, b Result) int { return strings.Compare(a.Name, b.Name) })
	f.Runs = slices.DeleteFunc(append(f.Runs, run), func(run Run) bool {
		return !slices.ContainsFunc(f.Results, func(r Result) bool { return r.Run.Equal(run.Time) })
	})
	text, err := json.MarshalIndent(f, "", " ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	if err := os.WriteFile(path+".tmp", append(text, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}

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

// WriteTables puts tables into a Markdown document, in the place of those that it has.
func WriteTables(document, tables string) error {
	const begin, end = "<!-- made by make bench-table: begin -->\n", "<!-- made by make bench-table: end -->\n"
	text, err := os.ReadFile(document)
	if err != nil {
		return err
	}
	before, rest, begun := bytes.Cut(text, []byte(begin))
	_, after, ended := bytes.Cut(rest, []byte(end))
	if !begun || !ended {
		return errors.New(document + ": has no place for tables")
	}
	return os.WriteFile(document, []byte(string(before)+begin+"\n"+tables+"\n"+end+string(after)), 0o644)
}

// Value returns a single figure, and 0 if there is none of that name.
func (f File) Value(name string) float64 {
	for _, r := range f.Results {
		if r.Name == name && r.Value != nil {
			return *r.Value
		}
	}
	return 0
}

// ListRuns returns a list of the runs in Markdown, each with the scenarios that it measured last.
func (f File) ListRuns() string {
	var b strings.Builder
	for i, run := range f.Runs {
		var measured []string
		for _, r := range f.Results {
			scenario, _, _ := strings.Cut(r.Name, ".")
			if r.Run.Equal(run.Time) && !slices.Contains(measured, scenario) {
				measured = append(measured, scenario)
			}
		}
		fmt.Fprintf(&b, "%d. %s, %d cores of %s, %.0f GiB, Linux %s, %s: %s\n", i+1, run.Time.Format("2006-01-02 15:04 MST"),
			run.Machine.Cores, run.Machine.CPU, float64(run.Machine.Memory)/(1<<30), run.Machine.Kernel, run.Go, strings.Join(measured, ", "))
	}
	return b.String()
}

// GoalsTable returns a Markdown table of what came of the goals. It fails if a goal was never measured.
func (f File) GoalsTable(goals []Goal) (string, error) {
	var b strings.Builder
	fmt.Fprint(&b, "| figure | measured | goal | |\n|---|---|---|---|\n")
	var missing error
	for _, g := range goals {
		o, err := g.Check(f.Results)
		missing = errors.Join(missing, err)
		fmt.Fprintln(&b, o)
	}
	return b.String(), missing
}

// IsAlone reports whether the machine has a load of at most 1, so that times can be judged.
func IsAlone() (bool, error) {
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return false, err
	}
	load, err := proc.LoadAvg()
	if err != nil {
		return false, fmt.Errorf("read the load: %w", err)
	}
	return load.Load1 <= 1, nil
}
