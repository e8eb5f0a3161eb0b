package receipts

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/internal/expect"
	"github.com/refvol/refvol/internal/must"
)

func bind(v *volume, path string, over string) {
	v.must(unix.Mount(path, over, "", unix.MS_BIND, ""))
	v.Cleanup(func() { _ = unix.Unmount(over, unix.MNT_DETACH) })
	v.must(unix.Mount("", over, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
}

// TestAnOpenCounts in all its forms.
func TestAnOpenCounts(t *testing.T) {
	for name, open := range map[string]func(v *volume, path string) *exec.Cmd{
		"by path":     func(_ *volume, path string) *exec.Cmd { return exec.Command("cat", path) },
		"for writing": func(_ *volume, path string) *exec.Cmd { return exec.Command("sh", "-c", ": >> "+path) },
		"subPath of a directory": func(v *volume, path string) *exec.Cmd {
			over := v.TempDir()
			bind(v, filepath.Dir(path), over)
			return exec.Command("cat", over+"/key")
		},
		"subPath of a file": func(v *volume, path string) *exec.Cmd {
			over := v.TempDir() + "/file"
			v.must(os.WriteFile(over, nil, 0o644))
			bind(v, path, over)
			return exec.Command("cat", over)
		},
		"symbolic link": func(v *volume, path string) *exec.Cmd {
			v.must(os.Symlink("gen/a/key", v.path+"/link"))
			return exec.Command("cat", v.path+"/link")
		},
		"link of an open descriptor": func(v *volume, _ string) *exec.Cmd {
			cmd := exec.Command("cat", "/proc/self/fd/3")
			cmd.ExtraFiles = []*os.File{v.open("gen/a/key")} // its open is the test's own
			return cmd
		},
		"link of an O_PATH":         func(_ *volume, path string) *exec.Cmd { return job("open an O_PATH", path) },
		"other user namespace":      func(_ *volume, path string) *exec.Cmd { return exec.Command("unshare", "-U", "cat", path) },
		"other namespaces, as root": func(_ *volume, path string) *exec.Cmd { return exec.Command("unshare", "-Urmpf", "cat", path) },
	} {
		t.Run(name, func(t *testing.T) {
			v := newVolume(t)
			v.dir("gen/a", "key", "other")
			_, r := v.watch()
			run(t, open(v, v.path+"/gen/a/key"))
			v.want(r, "gen/a/key")
			if v.overflows > 0 {
				t.Error("overflow was called")
			}
		})
	}
}

// TestWhatOpensNothingDoesNotCount also covers the plugin's own opens.
func TestWhatOpensNothingDoesNotCount(t *testing.T) {
	v := newVolume(t)
	v.dir("gen", "key", "sentinel")
	v.dir("gen/sub")
	_, r := v.watch()
	key := v.path + "/gen/key"
	file := v.open("gen/key")
	for name, cmd := range map[string]*exec.Cmd{
		"stat":                       exec.Command("stat", key),
		"listing":                    exec.Command("ls", "-laR", v.path),
		"O_PATH":                     job("O_PATH", key),
		"read of an open descriptor": exec.Command("cat"),
		"change of mode":             exec.Command("chmod", "600", key),
		"nothing there":              exec.Command("sh", "-c", "! cat "+v.path+"/gen/none 2>/dev/null"),
	} {
		t.Run(name, func(t *testing.T) {
			cmd.Stdin = file
			run(t, cmd)
			v.want(r)
		})
	}
	t.Run("own", func(t *testing.T) {
		var threads sync.WaitGroup
		for range 8 {
			threads.Go(func() {
				if _, err := os.ReadFile(key); err != nil {
					t.Error(err)
				}
			})
		}
		threads.Wait()
		v.want(r)
	})
	v.cat("gen/sentinel") // this shows that the watch works and that all of the above was silent
	v.want(r, "gen/sentinel")
}

// TestAReportIsOfOneFileSystem: its files, each once.
func TestAReportIsOfOneFileSystem(t *testing.T) {
	v := newVolume(t)
	other := v.beside()
	v.dir("1/a/b", "key")
	v.dir("1", "key")
	other.dir("2", "key")
	_, first := v.watch()
	_, second := other.watch()
	v.cat("1/key", "1/a/b/key", "1/key")
	other.cat("2/key")
	v.cat("1/key")
	other.want(second, "2/key")
	files, calls := first.take()
	if slices.Sort(files); calls != 1 || !slices.Equal(files, slices.Sorted(slices.Values([]string{v.id("1/key"), v.id("1/a/b/key")}))) {
		t.Errorf("got %d calls with %q", calls, files)
	}
}

// TestAnIgnoredFileIsSilent through each of its links, also when it is written.
func TestAnIgnoredFileIsSilent(t *testing.T) {
	v := newVolume(t)
	v.dir("1", "key", "other")
	v.dir("2")
	v.must(os.Link(v.path+"/1/key", v.path+"/2/key"))
	_, r := v.watch()
	file := v.open("1/key")
	v.must(v.ignore(int(file.Fd())))
	v.cat("1/key", "2/key", "1/other")
	v.want(r, "1/other")

	run(t, exec.Command("sh", "-c", "echo more >> "+v.path+"/2/key"))
	v.must(os.RemoveAll(v.path + "/1"))
	v.cat("2/key")
	v.want(r)

	v.must(v.group.Listen(int(file.Fd())))
	v.must(v.group.Listen(int(file.Fd()))) // twice is the same as once
	v.cat("2/key")
	v.want(r, "2/key")
}

// TestAPositionInTheQueue: the opens of a file from before it was ignored are not reported as long as a read that began earlier may leave
// some of them.
func TestAPositionInTheQueue(t *testing.T) {
	v := newVolume(t)
	taken, report, reported := v.reportsLate()
	v.cat("1/other")
	first := make(chan error)
	go func() { first <- v.group.Drain(drainTime) }()
	<-taken // so the next open is left to another read
	v.cat("1/key")
	before := must.Get(v.group.Ignore(int(v.open("1/key").Fd())))(v)
	if v.group.HasReported(before) {
		t.Error("opens are reported before a read has ended")
	}
	close(report)
	v.must(<-first)
	if v.group.HasReported(before) || slices.Contains(*reported, v.id("1/key")) {
		t.Errorf("after a read that began earlier: reported are %q", *reported)
	}
	v.must(v.group.Drain(drainTime))
	if !v.group.HasReported(before) || !slices.Contains(*reported, v.id("1/key")) {
		t.Errorf("after the next read: reported are %q", *reported)
	}
	if v.group.HasReported(0) {
		t.Error("of a file that was not ignored, all opens are reported")
	}
	if after, err := v.group.Ignore(-1); err == nil || after != 0 {
		t.Errorf("of no file: the position %d, %v", after, err)
	}
}

// TestAnIDIsOfOneFile: through each of its links, and never of a later file.
func TestAnIDIsOfOneFile(t *testing.T) {
	v := newVolume(t)
	dir := v.dir("1", "key", "other")
	v.must(os.Link(v.path+"/1/key", v.path+"/link"))
	id := must.Get(v.group.ID(int(dir.Fd()), "key"))(v)
	own := must.Get(v.group.ID(int(v.open("1/key").Fd()), ""))(v)
	if id != own || id != v.id("link") || id == v.id("1/other") {
		t.Errorf("the IDs are %q, of the descriptor %q, of the link %q, of another file %q", id, own, v.id("link"), v.id("1/other"))
	}
	for range 100 {
		v.must(os.RemoveAll(v.path + "/1/other"))
		v.dir("1", "other")
		if v.id("1/other") == id {
			t.Fatal("two files have an ID")
		}
	}
}

// TestAStoppedWatchIsSilent: also about earlier opens. The last watch of a file system is its only one.
func TestAStoppedWatchIsSilent(t *testing.T) {
	v := newVolume(t)
	v.dir("1", "key")
	stop, r := v.watch()
	v.cat("1/key")
	stop()
	stop() // twice is the same as once
	v.want(r)
	again, first := v.watch()
	_, last := v.watch()
	again()
	v.cat("1/key")
	v.want(first)
	v.want(last, "1/key")
}

// TestMarksHinderNoUnmount: they disappear with their file system, even if events are queued, and need not be removed.
func TestMarksHinderNoUnmount(t *testing.T) {
	v := newVolume(t)
	_, r := v.watch()
	var files []*os.File
	for _, name := range []string{"1", "2"} {
		dir := v.dir(name, "key")
		file := must.Get(os.Open(v.path + "/" + name + "/key"))(v)
		v.must(v.ignore(int(file.Fd())))
		dir.Close()
		files = append(files, file)
	}
	v.dir("3", "key").Close()
	marks := func(want int) {
		t.Helper()
		expect.Equal(t, "marks", v.marks(), want)
	}
	marks(3)
	v.must(os.RemoveAll(v.path + "/1"))
	for _, file := range files {
		file.Close()
	}
	marks(2)
	v.cat("3/key")
	id := v.id("3/key")
	v.must(unix.Unmount(v.path, 0))
	marks(0)
	v.must(v.group.Drain(drainTime))
	got, _ := r.take()
	expect.Equal(t, "reported as opened", got, []string{id})
}
