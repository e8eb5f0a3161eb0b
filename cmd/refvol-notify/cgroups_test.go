package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// signaller enters the cgroup in its first argument, and then a cgroup namespace if the second says so. It signals the processes of the name
// in the third, and prints how many it has found.
func signaller() int {
	runtime.LockOSThread() // a cgroup namespace is a thread's
	err := os.WriteFile(os.Args[1]+"/cgroup.procs", []byte("0"), 0)
	if err == nil && os.Args[2] == "namespace" {
		err = unix.Unshare(unix.CLONE_NEWCGROUP)
	}
	var found []process
	if err == nil {
		found, err = sendSignal(&options{process: os.Args[3], signal: syscall.SIGHUP})
	}
	fmt.Println(len(found), err) //nolint:forbidigo // It is a program.
	return 0
}

// cgroupRoot returns a directory of the machine's cgroups, of version 2 or 1, in which a test may make cgroups.
func cgroupRoot(t *testing.T) string {
	t.Helper()
	var root unix.Statfs_t
	if err := unix.Statfs("/sys/fs/cgroup", &root); err == nil && root.Type == unix.CGROUP2_SUPER_MAGIC {
		return "/sys/fs/cgroup"
	}
	return "/sys/fs/cgroup/pids"
}

// TestSignalInCgroups: of all processes that are visible, as with hostPID, only those of the same pod's cgroups are signalled.
func TestSignalInCgroups(t *testing.T) {
	node := filepath.Join(cgroupRoot(t), "refvol-notify-"+rand.Text()) // a process number is not unique: tests have process namespaces
	groups := []string{node, node + "/pod1", node + "/pod1/own", node + "/pod1/app", node + "/pod2", node + "/pod2/app"}
	for _, dir := range groups {
		switch err := os.Mkdir(dir, 0o755); {
		case errors.Is(err, os.ErrPermission), errors.Is(err, syscall.EROFS), errors.Is(err, os.ErrNotExist):
			t.Skipf("this machine's cgroups can't be used: %v", err)
		case err != nil:
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := os.Remove(dir); err != nil {
				t.Error(err)
			}
		})
	}
	name := "app" + strconv.Itoa(os.Getpid())
	applications := map[string]*application{}
	for _, dir := range []string{"/pod1/app", "/pod2/app", "/pod2"} {
		if dir == "/pod2" && strings.HasSuffix(cgroupRoot(t), "cgroup") {
			continue // in version 2 a cgroup with others in it has no processes of its own, if it has controllers
		}
		app := startApplication(t, name, nil, "0s")
		if err := os.WriteFile(node+dir+"/cgroup.procs", []byte(strconv.Itoa(app.Process.Pid)), 0); err != nil {
			t.Fatal(err)
		}
		applications[dir] = app
	}
	for _, namespace := range []string{"namespace", "none"} {
		out, err := self(t.Context(), "signaller", node+"/pod1/own", namespace, name).CombinedOutput()
		if err != nil || string(out) != "1 <nil>\n" {
			t.Errorf("%s: %s %v", namespace, out, err)
		}
		applications["/pod1/app"].expect(t, "gets hangup")
	}
	for dir, app := range applications {
		select {
		case line := <-app.lines:
			t.Errorf("the application in %s says %q", dir, line)
		default:
		}
	}
}
