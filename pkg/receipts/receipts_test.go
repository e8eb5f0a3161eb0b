package receipts

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// bind mounts a path read-only elsewhere.
func bind(v *volume, path string, over string) {
	v.must(unix.Mount(path, over, "", unix.MS_BIND, ""))
	v.Cleanup(func() { _ = unix.Unmount(over, unix.MNT_DETACH) })
	v.must(unix.Mount("", over, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
}

// TestAnOpenCounts however it is done.
func TestAnOpenCounts(t *testing.T) {
	for name, open := range map[string]func(v *volume, path string) *exec.Cmd{
		"by path":     func(_ *volume, path string) *exec.Cmd { return exec.Command("cat", path) },
		"for writing": func(_ *volume, path string) *exec.Cmd { return job("open for writing", path) },
		"read-only bind mount": func(v *volume, _ string) *exec.Cmd {
			over := v.TempDir()
			bind(v, v.path, over)
			return exec.Command("cat", over+"/gen/a/key")
		},
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
		"openat": func(v *volume, _ string) *exec.Cmd { return job("openat", v.path+"/gen", "a/key") },
		"link of an open descriptor": func(v *volume, _ string) *exec.Cmd {
			cmd := exec.Command("cat", "/proc/self/fd/3")
			cmd.ExtraFiles = []*os.File{v.open("gen/a/key")} // its open is the test's own
			return cmd
		},
		"link of an O_PATH":         func(_ *volume, path string) *exec.Cmd { return job("open an O_PATH", path) },
		"other mount namespace":     func(_ *volume, path string) *exec.Cmd { return exec.Command("unshare", "-m", "cat", path) },
		"other process namespace":   func(_ *volume, path string) *exec.Cmd { return exec.Command("unshare", "-pf", "cat", path) },
		"other user namespace":      func(_ *volume, path string) *exec.Cmd { return exec.Command("unshare", "-U", "cat", path) },
		"other namespaces, as root": func(_ *volume, path string) *exec.Cmd { return exec.Command("unshare", "-Urmpf", "cat", path) },
	} {
		t.Run(name, func(t *testing.T) {
			v := unlimited(t)
			v.dir("gen/a", "key", "other")
			w, r := v.watch(v.open("gen"), "")
			v.add(w, v.open("gen/a"), "a")
			run(t, open(v, v.path+"/gen/a/key"))
			v.want(r, "a/key")
			if v.overflows > 0 {
				t.Error("overflow was called")
			}
		})
	}
}

// TestWhatOpensNothingDoesNotCount is also about the plugin's own opens.
func TestWhatOpensNothingDoesNotCount(t *testing.T) {
	v := unlimited(t)
	dir := v.dir("gen", "key", "sentinel")
	v.dir("gen/sub")
	v.must(os.Link(v.path+"/gen/key", v.path+"/link"))
	_, r := v.watch(dir, "")
	key := v.path + "/gen/key"
	file := v.open("gen/key")
	for name, cmd := range map[string]*exec.Cmd{
		"stat":                       exec.Command("stat", key),
		"listing":                    exec.Command("ls", "-laR", v.path),
		"O_PATH":                     job("O_PATH", key),
		"read of an open descriptor": exec.Command("cat"),
		"mapping":                    job("map stdin"),
		"link that is not watched":   exec.Command("cat", v.path+"/link"),
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
				_, err := os.ReadFile(key)
				if err != nil {
					t.Error(err)
				}
			})
		}
		threads.Wait()
		v.want(r)
	})
	v.cat("gen/sentinel") // all of this was seen to be silent, not deaf
	v.want(r, "sentinel")
}

// TestAReportIsOfOneWatch: paths below it, each once, and not those of others.
func TestAReportIsOfOneWatch(t *testing.T) {
	v := unlimited(t)
	w, first := v.watch(v.dir("1", "key"), "")
	v.add(w, v.dir("1/a/b", "key"), "a/b")
	_, second := v.watch(v.dir("2", "key"), "")
	v.cat("1/key", "1/a/b/key", "2/key", "1/key")
	v.cat("1/key")
	v.drain()
	if paths, calls := first.take(); calls != 1 || !slices.Equal(paths, []string{"a/b/key", "key"}) {
		t.Errorf("got %d calls with %q", calls, paths)
	}
	v.want(second, "key")
}

// TestAnIgnoredFileIsSilent by each of its links, also when it is written to.
func TestAnIgnoredFileIsSilent(t *testing.T) {
	v := unlimited(t)
	w, r := v.watch(v.dir("1", "key", "other"), "1")
	v.dir("2")
	v.must(os.Link(v.path+"/1/key", v.path+"/2/key"))
	v.add(w, v.open("2"), "2")
	file := v.open("1/key")
	v.must(v.group.Ignore(int(file.Fd())))
	v.cat("1/key", "2/key", "1/other")
	v.want(r, "1/other")

	run(t, exec.Command("sh", "-c", "echo more >> "+v.path+"/2/key"))
	v.dir("3")
	v.must(os.Link(v.path+"/2/key", v.path+"/3/key"))
	v.must(os.RemoveAll(v.path + "/1"))
	v.add(w, v.open("3"), "3")
	v.cat("2/key", "3/key")
	v.want(r)

	v.must(v.group.Listen(int(file.Fd())))
	v.must(v.group.Listen(int(file.Fd()))) // twice is once
	v.cat("3/key")
	v.want(r, "3/key")
}

// TestAStoppedWatchIsSilent, also about opens from before.
func TestAStoppedWatchIsSilent(t *testing.T) {
	v := unlimited(t)
	dir := v.dir("1", "key")
	w, r := v.watch(dir, "1")
	_, other := v.watch(v.dir("2", "key"), "2")
	v.cat("1/key", "2/key")
	v.must(w.Stop(int(dir.Fd())))
	v.must(w.Stop(int(dir.Fd()))) // twice is once
	v.cat("1/key")
	v.want(r)
	v.want(other, "2/key")
	if n := v.marks(); n != 1 {
		t.Errorf("there are %d marks, want 1", n)
	}
	if n := len(v.group.dirs); n != 1 {
		t.Errorf("there are %d directories, want 1", n)
	}
}

// TestStopLeavesWhatAnotherWatchHas: a directory belongs to the Watch that was given it last.
func TestStopLeavesWhatAnotherWatchHas(t *testing.T) {
	v := unlimited(t)
	dir := v.dir("1", "key")
	w, before := v.watch(dir, "")
	_, after := v.watch(dir, "")
	v.must(w.Stop())
	v.cat("1/key")
	v.want(before)
	v.want(after, "key")
}

// TestNoOpenFromBeforeCounts: who reads an old content has not read the new one.
func TestNoOpenFromBeforeCounts(t *testing.T) {
	v := unlimited(t)
	dir := v.dir("1", "key")
	w, before := v.watch(dir, "")
	v.cat("1/key")
	v.must(w.Stop())
	v.cat("1/key")
	_, after := v.watch(dir, "")
	v.want(before)
	v.want(after)
	v.cat("1/key")
	v.want(after, "key")
}

// TestMarksGoWithWhatTheyMark: nobody has to remove them.
func TestMarksGoWithWhatTheyMark(t *testing.T) {
	v := unlimited(t)
	v.must(os.Mkdir(v.path+"/1", 0o755))
	dir := v.dir("1", "key")
	w, _ := v.watch(dir, "")
	file, err := os.Open(v.path + "/1/key")
	v.must(err)
	v.must(v.group.Ignore(int(file.Fd())))
	if n := v.marks(); n != 2 {
		t.Errorf("there are %d marks, want 2", n)
	}
	v.must(w.Stop())
	v.must(os.RemoveAll(v.path + "/1"))
	dir.Close()
	file.Close()
	if n := v.marks(); n != 0 {
		t.Errorf("there are %d marks, want none", n)
	}
}

// TestMarksHinderNoUnmount: the file system goes, with its marks, although events wait.
func TestMarksHinderNoUnmount(t *testing.T) {
	v := unlimited(t)
	dir := v.dir("1", "key", "other")
	_, r := v.watch(dir, "")
	file := v.open("1/other")
	v.must(v.group.Ignore(int(file.Fd())))
	dir.Close()
	file.Close()
	v.cat("1/key")
	v.must(unix.Unmount(v.path, 0))
	v.want(r, "key")
	if n := v.marks(); n != 0 {
		t.Errorf("there are %d marks, want none", n)
	}
}

// TestADetachedMountIsWatched before anybody can see it, and from then on.
func TestADetachedMountIsWatched(t *testing.T) {
	v := unlimited(t)
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	v.must(err)
	v.must(unix.FsconfigCreate(fs))
	mount, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	v.must(err)
	unix.Close(fs)
	v.must(unix.Mkdirat(mount, "1", 0o755))
	dir, err := unix.Openat(mount, "1", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	v.must(err)
	v.must(Probe(dir))
	file, err := unix.Openat(dir, "key", unix.O_WRONLY|unix.O_CREAT|unix.O_CLOEXEC, 0o644)
	v.must(err)
	unix.Close(file)
	var r recorder
	v.must(v.group.Watch(r.opened).Add(dir, ""))
	unix.Close(dir)
	over := t.TempDir()
	v.must(unix.MoveMount(mount, "", unix.AT_FDCWD, over, unix.MOVE_MOUNT_F_EMPTY_PATH))
	unix.Close(mount)
	defer func() { _ = unix.Unmount(over, unix.MNT_DETACH) }()
	v.cat(over + "/1/key")
	v.want(&r, "key")
	v.must(unix.Unmount(over, 0))
	if n := v.marks(); n != 0 {
		t.Errorf("there are %d marks, want none", n)
	}
}
