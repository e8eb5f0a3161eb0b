package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/internal/must"
)

// target prints each HUP. After a TERM it ends when the time in its first argument is over. Further arguments are processes to start, with
// the same name.
func target() int {
	signals := make(chan os.Signal, 10)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGTERM)
	delay, err := time.ParseDuration(os.Args[1])
	if err != nil {
		return 3
	}
	if len(os.Args) > 2 {
		child := self(context.Background(), "target", os.Args[1])
		child.Args[0], child.Stdout = os.Args[2], os.Stdout
		if err := child.Start(); err != nil {
			return 4
		}
	}
	fmt.Println("runs", os.Getpid()) //nolint:forbidigo // It is a program.
	for s := range signals {
		fmt.Println("gets", s) //nolint:forbidigo // It is a program.
		if s == syscall.SIGTERM {
			<-time.After(delay)
			return 0
		}
	}
	return 0
}

// application is a real process with a name, and the lines that it prints.
type application struct {
	*exec.Cmd
	lines chan string
}

func startApplication(t *testing.T, name string, args ...string) *application {
	t.Helper()
	cmd := self(t.Context(), "target", args...)
	cmd.Args[0] = "/usr/bin/" + name
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	must.Do(t, err)
	a := &application{cmd, make(chan string, 10)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for scanner := bufio.NewScanner(out); scanner.Scan(); {
			a.lines <- scanner.Text()
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		out.Close()
		<-done
		_ = cmd.Wait()
	})
	for range max(1, len(args)) {
		a.expect(t, "runs")
	}
	return a
}

func (a *application) expect(t *testing.T, prefix string) {
	t.Helper()
	select {
	case line := <-a.lines:
		if !strings.HasPrefix(line, prefix) {
			t.Fatalf("the application says %q, not %q", line, prefix)
		}
	case <-time.After(30 * time.Second):
		t.Fatalf("the application does not say %q", prefix)
	}
}

// TestIsNamed: a name is the kernel's or the command's.
func TestIsNamed(t *testing.T) {
	program := must.Get(exec.LookPath("sleep"))(t)
	cmd := exec.CommandContext(t.Context(), program, "100")
	cmd.Args[0] = "/opt/another"
	must.Do(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for _, name := range []string{"sleep", "another"} { // the kernel names a process a moment after Start has returned
		waitFor(t, "it is named "+name, func() bool { return isNamed(cmd.Process.Pid, name) })
	}
	if isNamed(cmd.Process.Pid, "opt") {
		t.Error("it is named by its directory")
	}
}

// A change signals the topmost process of the name.
func TestSignal(t *testing.T) {
	v := newVolume(t)
	v.write("a", "1")
	name := "app-" + strconv.Itoa(os.Getpid()) + "-with-a-long-name"
	app := startApplication(t, name, "0s", name)
	p := start(t, "--dir="+v.path, "--signal=HUP", "--process="+name, "--settle=0s")
	v.write("a", "2")
	app.expect(t, "gets hangup")
	v.write("a", "3")
	app.expect(t, "gets hangup")
	said := `msg=acted action="send HUP to ` + name + `"`
	waitFor(t, "the log says it twice", func() bool { return strings.Count(p.log.String(), said) == 2 })
	if status := p.stop(); status != 0 {
		t.Errorf("status %d", status)
	}
	select {
	case line := <-app.lines:
		t.Errorf("another process of the name says %q", line)
	default:
	}
}

// TERM, the time that the process takes, then the exit. After the grace the exit comes anyway.
func TestTermBeforeExit(t *testing.T) {
	for name, c := range map[string]struct{ takes, grace string }{"in time": {"100ms", "1h"}, "never": {"1h", "10ms"}} {
		t.Run(name, func(t *testing.T) {
			v := newVolume(t)
			v.write("a", "1")
			program := "app-" + strconv.Itoa(os.Getpid())
			app := startApplication(t, program, c.takes)
			p := start(t, "--dir="+v.path, "--state="+t.TempDir(), "--exit-code=42", "--signal=TERM", "--process="+program, "--grace="+c.grace, "--settle=0s")
			v.write("a", "2")
			app.expect(t, "gets terminated")
			if status := <-p.done; status != 42 {
				t.Errorf("status %d", status)
			}
			if ended := (process{app.Process.Pid, app.Process}).hasEnded(); ended != (name == "in time") {
				t.Errorf("has ended: %t", ended)
			}
		})
	}
}

// The text says what is missing: a process of the name, the user or the capability. That of the capability is judged by made-up values, because
// a test that gives it up needs a process of another user.
func TestRefusals(t *testing.T) {
	name := "app-" + strconv.Itoa(os.Getpid())
	opts := mustParse(t, "--dir=/a", "--signal=HUP", "--process="+name)
	if _, err := sendSignal(opts); err == nil || !strings.Contains(err.Error(), `none is named "`+name+`"`) {
		t.Error(err)
	}
	const noKill = "of user 65532: this container runs as user 0, but lacks the capability KILL: set securityContext.capabilities.add: [KILL]"
	if err := refusal(7, "app", 0, "65532"); !strings.HasSuffix(err.Error(), noKill) {
		t.Errorf("%v, not %s", err, noKill)
	}
	startApplication(t, name, "0s")
	var errno syscall.Errno
	done := make(chan error)
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with its rights, because the kernel's call only affects this thread
		if _, _, errno = unix.RawSyscall(unix.SYS_SETRESUID, 65532, 65532, 65532); errno == 0 {
			_, err := sendSignal(opts)
			done <- err
		}
	}()
	err := <-done
	switch errno {
	case 0:
	case syscall.EINVAL, syscall.EPERM:
		t.Skip("needs a second user: the sandbox of a user has one")
	default:
		t.Fatal("become another user: ", errno)
	}
	const want = "of user 0: this container runs as user 65532: set securityContext.runAsUser: 0, or runAsUser: 0 with capabilities.add: [KILL]"
	if err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("%v, not %s", err, want)
	}
}

// Only processes of this pod are signalled: with hostPID, all of the node's processes are visible.
func TestIsBeside(t *testing.T) {
	v1 := func(path string) map[string]string {
		return map[string]string{"cpu,cpuacct": path, "memory": path, "rdma": "/"}
	}
	v2 := func(path string) map[string]string { return map[string]string{"": path} }
	for name, c := range map[string]struct {
		own, other map[string]string
		want       bool
	}{
		"v2: this container":                  {v2("/"), v2("/"), true},
		"v2: a cgroup in it":                  {v2("/"), v2("/sub"), false},
		"v2: beside it":                       {v2("/"), v2("/../other"), true},
		"v2: below what is beside it":         {v2("/"), v2("/../cri-containerd-b.scope/init"), true},
		"v2: another pod":                     {v2("/"), v2("/../../pod2/a"), false},
		"v2: the node":                        {v2("/"), v2("/../../../../system.slice/sshd.service"), false},
		"v2: above it":                        {v2("/"), v2("/.."), false},
		"v2: the pod above":                   {v2("/"), v2("/../.."), false},
		"v2: no namespace, beside it":         {v2("/kubepods/pod1/a"), v2("/kubepods/pod1/b"), true},
		"v2: no namespace, another pod":       {v2("/kubepods/pod1/a"), v2("/kubepods/pod2/b"), false},
		"v2: no namespace, a longer name":     {v2("/kubepods/pod1/a"), v2("/kubepods/pod11/b"), false},
		"v2: no cgroup of a pod":              {v2("/a"), v2("/b"), false},
		"v1: this container":                  {v1("/kubepods/pod1/a"), v1("/kubepods/pod1/a"), true},
		"v1: beside it":                       {v1("/kubepods/pod1/a"), v1("/kubepods/pod1/b"), true},
		"v1: another pod":                     {v1("/kubepods/pod1/a"), v1("/kubepods/pod2/a"), false},
		"v1: the node":                        {v1("/kubepods/pod1/a"), v1("/"), false},
		"v1: one controller is another pod's": {v1("/p/pod1/a"), map[string]string{"cpu,cpuacct": "/p/pod1/b", "memory": "/p/pod2/b", "rdma": "/"}, false},
		"v1: one controller is missing":       {v1("/p/pod1/a"), map[string]string{"cpu,cpuacct": "/p/pod1/b", "rdma": "/"}, false},
		"v1: a namespace, beside it":          {v1("/"), map[string]string{"cpu,cpuacct": "/../b", "memory": "/../b", "rdma": "/"}, true},
		"v1: a namespace, another pod":        {v1("/"), map[string]string{"cpu,cpuacct": "/../../pod2/b", "memory": "/../../pod2/b", "rdma": "/"}, false},
		"no cgroups at all":                   {nil, nil, false},
		"the other process has ended":         {v2("/"), nil, false},
	} {
		if got := isBeside(c.own, c.other); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	if own := cgroupsOf("self"); !isBeside(own, own) {
		t.Errorf("%v is not beside itself", own)
	}
}

// If it is the only process of its namespace, it says what the pod's spec lacks.
func TestAlone(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := self(ctx, "program", "--dir=/a", "--signal=HUP", "--process=x")
	cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID
	output, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(output), "shareProcessNamespace: true") {
		t.Errorf("%v: %s", err, output)
	}
}

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
		app := startApplication(t, name, "0s")
		must.Do(t, os.WriteFile(node+dir+"/cgroup.procs", []byte(strconv.Itoa(app.Process.Pid)), 0))
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
