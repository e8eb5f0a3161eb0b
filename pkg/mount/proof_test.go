package mount

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/volume"
)

// Both ways of telling what is mounted must agree on mounts that every machine has.
func TestIdentifyAgrees(t *testing.T) {
	for _, path := range []string{"/", "/proc", "/dev", "/sys"} {
		t.Run(path, func(t *testing.T) {
			fd := openPath(t, path)
			byTable, err := identifyByMountTable(fd)
			if err != nil {
				t.Fatal(err)
			}
			if byTable.mountRoot && (byTable.source == "" || byTable.fsRoot == "") {
				t.Errorf("the mount table tells only %+v", byTable)
			}
			if err := probeStatmount(fd); err != nil {
				if statmountExpected(t) && !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EPERM) {
					t.Error(err)
				}
				return
			}
			byStatmount, err := identifyByStatmount(fd)
			if err != nil {
				t.Fatal(err)
			}
			if byStatmount != byTable {
				t.Errorf("statmount tells %+v, the mount table %+v", byStatmount, byTable)
			}
		})
	}
}

// statmountExpected says whether the kernel is one that tells a mount's source by
// statmount, unless a sandbox denies the call.
func statmountExpected(t *testing.T) bool {
	t.Helper()
	var major, minor int
	if _, err := fmt.Sscanf(kernelRelease(), "%d.%d", &major, &minor); err != nil {
		t.Fatalf("kernel release %q: %v", kernelRelease(), err)
	}
	return major > 6 || major == 6 && minor >= 13
}

func TestIdentifyWhatIsNotAMountRoot(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, dir+"/file")
	for _, path := range []string{dir, dir + "/file"} {
		fd := openPath(t, path)
		for name, identify := range identifiers() {
			if id, err := identify(fd); err != nil || id != (identity{}) {
				t.Errorf("%s(%s) = %+v, %v; want no mount root", name, path, id, err)
			}
		}
	}
}

func identifiers() map[string]func(int) (identity, error) {
	return map[string]func(int) (identity, error){"statmount": identifyByStatmount, "mount table": identifyByMountTable}
}

func TestProve(t *testing.T) {
	unknown := errors.New("can't tell")
	ours := identity{mountRoot: true, fsRoot: "/", source: "d:v"}
	with := func(change func(*identity)) identity {
		id := ours
		change(&id)
		return id
	}
	for name, tc := range map[string]struct {
		identity identity
		err      error
		want     error
		text     string
	}{
		"no mount root":          {with(func(id *identity) { *id = identity{} }), nil, ErrNotMounted, "not mounted"},
		"other volume":           {with(func(id *identity) { id.source = "d:v2" }), nil, ErrForeign, "another source"},
		"other driver":           {with(func(id *identity) { id.source = "dd:v" }), nil, ErrForeign, "another source"},
		"no source":              {with(func(id *identity) { id.source = "" }), nil, ErrForeign, "another source"},
		"bind mount of a part":   {with(func(id *identity) { id.fsRoot = "/..data" }), nil, ErrForeign, "only a part"},
		"root unknown":           {with(func(id *identity) { id.fsRoot = "" }), nil, ErrForeign, "only a part"},
		"not a tmpfs":            {ours, nil, ErrForeign, "no tmpfs"},
		"gone meanwhile":         {ours, ErrNotMounted, ErrNotMounted, "not mounted"},
		"kernel does not answer": {ours, unknown, unknown, "can't tell"},
	} {
		t.Run(name, func(t *testing.T) {
			m := &Mounter{driver: "d", identify: func(int) (identity, error) { return tc.identity, tc.err }}
			err := m.prove(openPath(t, "/proc"), "v")
			if !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
			checkText(t, err, tc.text)
		})
	}
}

// Nothing but the lack of a proven mount may count as "not mounted": callers give a
// volume up for that.
func TestReopenErrors(t *testing.T) {
	unknown := errors.New("can't tell")
	for name, tc := range map[string]struct {
		identity   identity
		err        error
		target     string
		want       error
		notMounted bool
	}{
		"plain directory":     {identity{}, nil, "v", ErrNotMounted, true},
		"missing directory":   {identity{}, nil, "w", fs.ErrNotExist, true},
		"foreign mount":       {identity{mountRoot: true, source: "x"}, nil, "v", ErrForeign, true},
		"outside":             {identity{}, nil, "../../../outside", ErrOutside, true},
		"link":                {identity{}, nil, "link", ErrOutside, true},
		"no answer":           {identity{}, unknown, "v", unknown, false},
		"too many open files": {identity{}, unix.EMFILE, "v", unix.EMFILE, false},
	} {
		t.Run(name, func(t *testing.T) {
			m, _ := tree(t)
			symlink(t, "v", m.kubeletDir+"/pods/1/link")
			m.identify = func(int) (identity, error) { return tc.identity, tc.err }
			before := openDescriptors(t)
			v, err := m.Reopen(t.Context(), "v", m.kubeletDir+"/pods/1/"+tc.target)
			if v != nil || !errors.Is(err, tc.want) {
				t.Errorf("got %v, %v; want %v", v, err, tc.want)
			}
			if got := errors.Is(err, ErrNotMounted); got != tc.notMounted {
				t.Errorf("%v: is ErrNotMounted %t, want %t", err, got, tc.notMounted)
			}
			if after := openDescriptors(t); after != before {
				t.Errorf("%d descriptors are open, %d were", after, before)
			}
		})
	}
}

func TestMethodsRefuseBadIDs(t *testing.T) {
	m, _ := tree(t)
	target := m.kubeletDir + "/pods/1/v"
	ctx := t.Context()
	_, createErr := m.Create(ctx, Params{VolumeID: "a/b", Size: 1, Inodes: 1, Mode: 0o755, UID: volume.NoOwner, GID: volume.NoOwner})
	_, reopenErr := m.Reopen(ctx, "a/b", target)
	_, usageErr := m.Usage(ctx, "a/b", target)
	for name, err := range map[string]error{
		"Create":  createErr,
		"Reopen":  reopenErr,
		"Usage":   usageErr,
		"Check":   m.Check(ctx, "a/b", target),
		"Unmount": m.Unmount(ctx, "a/b", target),
	} {
		t.Run(name, func(t *testing.T) { checkText(t, err, "VolumeID: Invalid value") })
	}
	if _, err := os.Stat(target); err != nil {
		t.Errorf("the directory is gone: %v", err)
	}
}

// Without any mount, Unmount removes an empty directory and touches nothing else.
func TestUnmountWithoutMount(t *testing.T) {
	m, outside := tree(t)
	pod := m.kubeletDir + "/pods/1"
	mkdirAll(t, pod+"/full/x")
	writeFile(t, pod+"/file")
	symlink(t, outside, pod+"/link")
	for name, tc := range map[string]struct {
		target string
		want   error
		stays  bool
	}{
		"missing":           {pod + "/missing", nil, false},
		"parent missing":    {pod + "/missing/mount", nil, false},
		"pod missing":       {m.kubeletDir + "/pods/2/v/mount", nil, false},
		"parent is a file":  {pod + "/file/mount", nil, false},
		"empty directory":   {pod + "/v", nil, false},
		"not empty":         {pod + "/full", ErrForeign, true},
		"file":              {pod + "/file", ErrForeign, true},
		"link":              {pod + "/link", ErrOutside, true},
		"below a link":      {pod + "/link/v", ErrOutside, true},
		"outside":           {outside + "/v", ErrOutside, true},
		"the directory":     {m.kubeletDir, ErrOutside, true},
		"relative":          {"pods/1", ErrOutside, false},
		"through a parent":  {m.kubeletDir + "/../outside/v", ErrOutside, true},
		"NUL in the target": {pod + "/a\x00b", ErrOutside, false},
	} {
		t.Run(name, func(t *testing.T) {
			if err := m.Unmount(t.Context(), "v", tc.target); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
			if _, err := os.Lstat(tc.target); (err == nil) != tc.stays {
				t.Errorf("lstat says %v; it should stay: %t", err, tc.stays)
			}
		})
	}
}

func TestNewRefuses(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, dir+"/file")
	for name, tc := range map[string]struct {
		opts Options
		want string
	}{
		"bad options":              {Options{}, "mount options: Driver: Invalid value"},
		"missing directory":        {Options{Driver: "d", KubeletDir: dir + "/nowhere"}, "open the kubelet's directory " + dir + "/nowhere: no such file"},
		"directory that is a file": {Options{Driver: "d", KubeletDir: dir + "/file"}, "not a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			before := openDescriptors(t)
			m, err := New(t.Context(), tc.opts)
			if m != nil {
				t.Errorf("got a Mounter, want none")
			}
			checkText(t, err, tc.want)
			if after := openDescriptors(t); after != before {
				t.Errorf("%d descriptors are open, %d were", after, before)
			}
		})
	}
}

func openPath(t *testing.T, path string) int {
	t.Helper()
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// The clone of a proven mount must be of the same file system.
func TestSameAs(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	v := &Volume{root: root}
	if err := v.sameAs(openPath(t, dir)); err != nil {
		t.Errorf("the same directory: %v", err)
	}
	if err := v.sameAs(openPath(t, other)); !errors.Is(err, ErrForeign) {
		t.Errorf("another directory: got %v, want %v", err, ErrForeign)
	}
	if err := v.sameAs(openPath(t, "/proc")); !errors.Is(err, ErrForeign) {
		t.Errorf("another file system: got %v, want %v", err, ErrForeign)
	}
}
