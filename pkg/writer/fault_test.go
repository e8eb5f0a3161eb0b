package writer

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/gob"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/volume"
)

// job is one write in a separate process, in which calls fail or kill it.
type job struct {
	Volume  string
	Options Options
	Tree    volume.Payload
	// Refused makes the job withdraw these objects instead of writing.
	Refused []volume.Ref
}

const jobVariable = "REFVOL_WRITER_TEST_JOB"

// jobProgram returns the program that does a job: this one, or with the race detector one that is built once from the same files without
// it. A job has one goroutine, and a process with the race detector takes longer to start than a job takes.
var jobProgram = sync.OnceValues(func() (string, error) {
	race := debug.BuildSetting{Key: "-race", Value: "true"}
	if info, ok := debug.ReadBuildInfo(); !ok || !slices.Contains(info.Settings, race) {
		return os.Args[0], nil
	}
	out, err := exec.Command("go", "test", "-vet=off", "-trimpath", "-buildvcs=false", "-c", "-o", builtProgram(), ".").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("building the program of a job: %w: %s", err, out)
	}
	return builtProgram(), err
})

func builtProgram() string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("refvol-writer-job-%d.test", os.Getpid()))
}

// do does the job of this process, if there is one, and returns the exit status.
func do() (status int, done bool) {
	text := os.Getenv(jobVariable)
	if text == "" {
		return 0, false
	}
	runtime.LockOSThread() // strace counts the calls of each thread
	if result, err := doJob(text); err != nil {
		_, _ = fmt.Fprintf(os.Stdout, "changed %t: %v", result.Changed, err)
		return 3, true
	}
	return 0, true
}

func doJob(text string) (Result, error) {
	var j job
	if err := gob.NewDecoder(base64.NewDecoder(base64.StdEncoding, strings.NewReader(text))).Decode(&j); err != nil {
		return Result{}, err
	}
	root, err := os.OpenRoot(j.Volume)
	if err != nil {
		return Result{}, err
	}
	ctx := context.Background()
	if j.Refused == nil {
		return New(j.Options).Write(ctx, root, &j.Tree)
	}
	refused := map[volume.Ref]bool{}
	for _, ref := range j.Refused {
		refused[ref] = true
	}
	return New(j.Options).Withdraw(ctx, root, refused, j.Tree.Record)
}

// fault is what happens to one call. Without what, nothing happens, and made gets the calls that the job makes.
type fault struct {
	what, call string
	when       int
	made       map[string]made
}

// made are the first call of a name that a job makes in its volume, and the last, by their numbers in the thread.
type made struct{ first, last int }

// count reads the trace of a job, which begins after the call that opens the volume. Calls of the runtime before it have numbers, too.
func (f fault) count(trace, volume string) {
	threads, thread, begun := map[string]map[string]made{}, "", false
	for line := range strings.Lines(trace) {
		id, call, _ := strings.Cut(line, " ")
		name, args, isCall := strings.Cut(strings.TrimSpace(call), "(")
		if !isCall || begun && id != thread {
			continue
		}
		if threads[id] == nil {
			threads[id] = map[string]made{}
		}
		m := threads[id][name]
		m.last++
		if begun && m.first == 0 {
			m.first = m.last
		}
		threads[id][name] = m
		if !begun && strings.Contains(args, `"`+volume+`"`) {
			thread, begun = id, true
		}
	}
	maps.Copy(f.made, threads[thread])
}

func (f fault) String() string { return fmt.Sprintf("%s of %s %d", f.what, f.call, f.when) }

// changes are the system calls of a write that change something. A process that is killed at another call leaves what the change before
// left, so it is killed at these only.
var changes = strings.Fields("mkdirat linkat write fchown fchmod symlinkat renameat unlinkat fsetxattr ftruncate fallocate openat")

// calls are all system calls of a write.
var calls = append(strings.Fields("openat2 getdents64 fstat newfstatat readlinkat fgetxattr fstatfs read"), changes...)

// takesRoom are the calls that may find no room.
var takesRoom = strings.Fields("mkdirat linkat write symlinkat renameat fsetxattr fallocate openat")

// run does a job under strace with a fault. It returns the job's output. hit is false if the job made fewer calls.
func (f fault) run(t *testing.T, j job) (output string, hit bool) {
	t.Helper()
	if _, err := exec.LookPath("strace"); err != nil {
		if slices.Contains(strings.Split(os.Getenv("REFVOL_WITHOUT"), ","), "strace") {
			t.Skip("SKIPPED: this machine has no strace (REFVOL_WITHOUT names it)")
		}
		t.Fatalf("%v: apt-get install strace, or set REFVOL_WITHOUT=strace to skip the tests with faults of single calls", err)
	}
	var text bytes.Buffer // in JSON a file has no content
	must.Do(t, gob.NewEncoder(&text).Encode(j))
	log := filepath.Join(t.TempDir(), "log")
	program := must.Get(jobProgram())(t)
	options := []string{"-f", "-o", log, "-e", "trace=" + strings.Join(calls, ",")}
	if f.what != "" {
		options = append(options[:4], "trace="+f.call, "-e", fmt.Sprintf("inject=%s:%s:when=%d", f.call, f.what, f.when))
	}
	if !strings.HasPrefix(f.what, "signal=") { // faster, but such a signal kills nobody
		options = append(options, "--seccomp-bpf")
	}
	cmd := exec.Command("strace", append(options, program)...)
	cmd.Env = append(os.Environ(), jobVariable+"="+base64.StdEncoding.EncodeToString(text.Bytes()), "GOMAXPROCS=1", "GOGC=off")
	out, err := cmd.CombinedOutput()
	trace, logErr := os.ReadFile(log)
	if logErr != nil {
		t.Fatalf("strace: %v, %v: %s", err, logErr, out)
	}
	if f.what == "" {
		f.count(string(trace), j.Volume)
	}
	hit = strings.Contains(string(trace), "INJECTED") || strings.Contains(string(trace), "killed by SIGKILL")
	if !hit && err != nil {
		t.Fatalf("%v: %v: %s", f, err, out)
	}
	if leaked := leak.Check("what the writer prints", string(out)); leaked != nil {
		t.Errorf("%v: %v", f, leaked)
	}
	return string(out), hit
}

// forEachFault runs try with each fault of each call until the job makes fewer calls. The short form has the first call of each name and the
// last.
func forEachFault(t *testing.T, whats []string, try func(t *testing.T, f fault) (hit bool)) {
	var f fault
	defer func() {
		if t.Failed() {
			t.Logf("the last fault: %v", f)
		}
	}()
	runs, ends := map[string]int{}, map[string]made{}
	long := os.Getenv("REFVOL_LONG") != ""
	if !long {
		try(t, fault{made: ends})
	}
	one := func(what, call string, when int) bool {
		f = fault{what: what, call: call, when: when}
		hit := !t.Failed() && try(t, f)
		if hit {
			runs[what]++
		}
		return hit
	}
	for _, what := range whats {
		for _, call := range calls {
			if what == "error=ENOSPC" && !slices.Contains(takesRoom, call) || what == "signal=KILL" && !slices.Contains(changes, call) {
				continue
			}
			if end := ends[call]; end.first > 0 {
				one(what, call, end.first)
				if end.last > end.first {
					one(what, call, end.last)
				}
			}
			for when := 1; long && one(what, call, when); when++ {
			}
		}
	}
	t.Logf("runs: %v", runs)
	for _, what := range whats {
		if runs[what] < 10 && long || runs[what] < 5 {
			t.Errorf("only %d runs of %s", runs[what], what)
		}
	}
}

var everyFault = []string{"signal=KILL", "error=EIO", "error=ENOSPC"}

func faultTrees() (before, after *volume.Payload) {
	before = withRecord("before", tree(naming(file("a", leak.Value), "db"), naming(file("d/b", "same"), "db"), file("d/c", "goes"), file("gone", leak.Value)))
	after = withRecord("after", tree(withMode(0o600, naming(file("a", leak.Value+leak.Value), "ca")), naming(file("d/b", "same"), "db"), file("d/f/g", "new"), file("new", "y")))
	before.Directories, after.Directories = []string{"m"}, []string{"m/n", "tls"} // an older build has made fewer
	return before, after
}

// TestFaults makes each call of a write fail or kill the process. The volume shows one tree or the other, complete, with its record, and a
// kill leaves nothing incomplete that another user can read. The next write repairs everything, and nothing remains.
func TestFaults(t *testing.T) {
	o, incomplete := withAttributes(t), 0
	forEachFault(t, everyFault, func(t *testing.T, f fault) bool {
		before, after := faultTrees()
		v := newVolume(t)
		v.write(New(o), before)
		out, hit := f.run(t, job{Volume: v.path, Options: o, Tree: *after})
		if f.what == "signal=KILL" {
			incomplete += v.wantClosed(t, f.String(), before, after)
		}
		record := must.Get(Record(v.root, o.AttributePrefix))(v)
		shown, want := v.shown(), before
		if record == "after" {
			want = after
		}
		if shown != dump(want) {
			t.Errorf("%v (%s): by the record it shows %s, but\n%s", f, out, record, shown)
		}
		if strings.Contains(out, "changed false") && record == "after" || strings.Contains(out, "changed true") && record != "after" {
			t.Errorf("%v: %s, and shows %s", f, out, record)
		}
		if strings.Contains(out, "changed false") && len(v.generations()) != 1 && f.call != "unlinkat" && f.call != "getdents64" && f.call != "openat2" && f.call != "renameat" {
			t.Errorf("%v: it left %q", f, v.generations())
		}
		v.write(New(o), after)
		return hit
	})
	if incomplete == 0 {
		t.Error("no file was incomplete")
	}
}

// wantClosed fails if others may read a file that has not the content of its path in one of the trees, by its own mode: not only the
// directory around a new file keeps them out. A generation that they may enter has all files of one of the trees that they may read. It
// returns the number of files that are not complete.
func (v *testVolume) wantClosed(t *testing.T, what string, trees ...*volume.Payload) (incomplete int) {
	t.Helper()
	complete, seen := map[string]bool{}, map[string]map[string]string{}
	for _, tree := range trees {
		for _, file := range tree.Files {
			complete[file.Path+"="+string(file.Data)] = true
		}
	}
	v.must(fs.WalkDir(v.root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		v.must(err)
		info := must.Get(entry.Info())(v)
		generation, path, _ := strings.Cut(name, "/")
		switch mayEnter := info.Mode()&0o005 == 0o005; {
		case entry.IsDir() && isGeneration(name) && mayEnter:
			seen[name] = map[string]string{}
		case entry.IsDir() && seen[generation] != nil && !mayEnter:
			t.Errorf("%s: others can't enter %s", what, name)
		}
		if !entry.Type().IsRegular() {
			return nil
		}
		content := must.Get(fs.ReadFile(v.root.FS(), name))(v)
		if seen[generation] != nil && info.Mode()&0o004 != 0 {
			seen[generation][path] = string(content)
		}
		if !complete[path+"="+string(content)] {
			incomplete++
			if info.Mode()&0o077 != 0 {
				t.Errorf("%s: %s has %d bytes and the mode %v", what, name, len(content), info.Mode())
			}
		}
		return nil
	}))
	if len(seen) == 0 {
		t.Errorf("%s: others see nothing", what)
	}
	for generation, files := range seen {
		if !slices.ContainsFunc(trees, func(tree *volume.Payload) bool { return maps.Equal(files, readableByOthers(tree)) }) {
			t.Errorf("%s: in %s others see %q", what, generation, slices.Sorted(maps.Keys(files)))
		}
	}
	return incomplete
}

func readableByOthers(tree *volume.Payload) map[string]string {
	files := map[string]string{}
	for _, f := range tree.Files {
		if f.Mode&0o004 != 0 {
			files[f.Path] = string(f.Data)
		}
	}
	return files
}

// TestInPlaceFaults is TestFaults with InPlace: in the end each remaining file has its inode.
func TestInPlaceFaults(t *testing.T) {
	o := withAttributes(t)
	o.InPlace = true
	forEachFault(t, everyFault, func(t *testing.T, f fault) bool {
		before, after := faultTrees()
		v := newVolume(t)
		v.write(New(o), before)
		inodes := v.inodes()
		out, hit := f.run(t, job{Volume: v.path, Options: o, Tree: *after})
		record := must.Get(Record(v.root, o.AttributePrefix))(v)
		if strings.Contains(out, "changed false") && v.shown() != dump(before) {
			t.Errorf("%v: %s, and shows\n%s", f, out, v.shown())
		}
		if record == "before" && v.shown() != dump(before) {
			t.Errorf("%v: the record is older than the files", f)
		}
		found := must.Get(New(o).Compare(t.Context(), v.root, after))(v)
		if record == "after" && len(found.Differ) > 0 {
			t.Errorf("%v: the files are torn, and the record does not say so: %v", f, found.Differ)
		}
		v.must(second(New(o).Write(t.Context(), v.root, after)))
		v.prune()
		v.checkInPlace(inodes, after)
		return hit
	})
}

// TestWithdrawFaults makes each call of a withdrawal fail: other files are never changed, and the next Withdraw removes what the first one
// did not.
func TestWithdrawFaults(t *testing.T) {
	for _, o := range bothOf(withAttributes(t)) {
		t.Run(fmt.Sprintf("InPlace=%v", o.InPlace), func(t *testing.T) {
			forEachFault(t, everyFault, func(t *testing.T, f fault) bool {
				v := newVolume(t)
				v.write(New(o), mixed())
				_, hit := f.run(t, job{Volume: v.path, Options: o, Refused: slices.Collect(maps.Keys(refSet("db")))})
				v.wantOwn(f.String())
				v.must(second(New(o).Withdraw(t.Context(), v.root, refSet("db"), "")))
				v.wantWithdrawn(f.String())
				v.must(second(New(o).Write(t.Context(), v.root, mixed())))
				v.prune()
				v.check(mixed())
				return hit
			})
		})
	}
}
