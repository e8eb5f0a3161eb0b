package harness

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestMemoryParentOfVersion1(t *testing.T) {
	mounts := []Mount{
		{Target: "/sys/fs/cgroup/unified", Type: "cgroup2", SuperOptions: "rw,nsdelegate"},
		{Target: "/sys/fs/cgroup/cpu", Type: "cgroup", SuperOptions: "rw,cpu,cpuacct"},
		{Target: "/sys/fs/cgroup/memory", Type: "cgroup", SuperOptions: "rw,memory"},
	}
	for _, tc := range []struct{ name, cgroups, want string }{
		{"own group", "3:cpu,cpuacct:/x\n2:memory:/a/b:c\n0::/\n", "/sys/fs/cgroup/memory/a/b:c"},
		{"with others", "2:hugetlb,memory:/\n", "/sys/fs/cgroup/memory"},
		{"no group", "3:cpu,cpuacct:/x\n", ""},
	} {
		got, files, err := memoryParent(mounts, tc.cgroups)
		if got != tc.want || errors.Is(err, ErrNoMemoryGroups) != (tc.want == "") {
			t.Errorf("%s: got %q, %v, want %q", tc.name, got, err, tc.want)
		}
		if err == nil && files != memoryFilesV1() {
			t.Errorf("%s: the files are %+v", tc.name, files)
		}
	}
}

// unifiedGroups makes what the cgroups of version 2 look like, as systemd makes them:
// root/user.slice/session.scope, of which the last has the processes.
func unifiedGroups(t *testing.T, rootControllers, sliceControllers string) (mounts []Mount, root string) {
	t.Helper()
	root = t.TempDir()
	for dir, controllers := range map[string]string{"": rootControllers, "user.slice": sliceControllers, "user.slice/session.scope": ""} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, dir, "cgroup.subtree_control"), []byte(controllers+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return []Mount{{Target: root, Type: "cgroup2"}}, root
}

func TestMemoryParentOfVersion2(t *testing.T) {
	for _, tc := range []struct {
		name, root, slice, cgroups string
		// want is below the root; "none" is no place for a group.
		want string
	}{
		{"in a session", "cpu memory pids", "memory pids", "0::/user.slice/session.scope\n", "user.slice"},
		{"slice without memory", "cpu memory pids", "pids", "0::/user.slice/session.scope\n", ""},
		{"in the root", "memory", "", "0::/\n", ""},
		{"path of another namespace", "memory", "", "0::/../x/y\n", ""},
		{"no memory", "cpu", "cpu", "0::/user.slice/session.scope\n", "none"},
		{"no controller, as in a container", "", "", "0::/\n", "none"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			mounts, root := unifiedGroups(t, tc.root, tc.slice)
			got, files, err := memoryParent(mounts, tc.cgroups)
			if tc.want == "none" {
				if !errors.Is(err, ErrNoMemoryGroups) {
					t.Errorf("got %q, %v, want ErrNoMemoryGroups", got, err)
				}
				return
			}
			if err != nil || got != filepath.Join(root, tc.want) || files != memoryFilesV2() {
				t.Errorf("got %q, %+v, %v, want %q", got, files, err, tc.want)
			}
		})
	}
}

func TestMemoryGroupOfVersion2(t *testing.T) {
	g := &MemoryGroup{dir: t.TempDir(), files: memoryFilesV2()}
	for file, text := range map[string]string{
		"memory.max":     "",
		"memory.current": "4096\n",
		"memory.events":  "low 1\nhigh 2\nmax 3\noom 4\noom_kill 5\n",
	} {
		if err := os.WriteFile(filepath.Join(g.dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := g.Usage(); err != nil || got != 4096 {
		t.Errorf("usage = %d, %v", got, err)
	}
	if got, err := g.Refusals(); err != nil || got != 3 {
		t.Errorf("refusals = %d, %v, want those of the limit", got, err)
	}
	for limit, want := range map[int64]string{1 << 20: "1048576", -1: "max"} {
		if err := g.Limit(limit); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(g.dir, "memory.max")); err != nil || string(got) != want {
			t.Errorf("memory.max = %q, %v, want %q", got, err, want)
		}
	}
}
