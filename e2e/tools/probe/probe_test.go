package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// ask runs one command and returns its answer.
func ask(t *testing.T, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	if err := run(t.Context(), &out, args); err != nil {
		t.Fatalf("probe %q: %v", args, err)
	}
	return out.String()
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{nil, {"what"}, {"tree"}, {"read", "a", "b"}, {"await", "file", "text"}} {
		if err := run(t.Context(), io.Discard, args); err == nil || err.Error() != usage {
			t.Errorf("probe %q: %v, want the usage", args, err)
		}
	}
}

func TestTree(t *testing.T) {
	dir := t.TempDir()
	for path, mode := range map[string]os.FileMode{"key": 0o440, "sub/deep": 0o600} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, path), []byte("of "+path), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "sub"), 0o750|os.ModeSetgid); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("sub/deep", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	var got []entry
	if err := json.Unmarshal([]byte(ask(t, "tree", dir)), &got); err != nil {
		t.Fatal(err)
	}
	uid, gid := uint32(os.Getuid()), uint32(os.Getgid())
	want := []entry{
		{Path: "key", Type: "file", Mode: "0440", Content: []byte("of key")},
		{Path: "link", Type: "link", Mode: "0777", Link: "sub/deep"},
		{Path: "sub", Type: "dir", Mode: "2750"},
		{Path: "sub/deep", Type: "file", Mode: "0600", Content: []byte("of sub/deep")},
	}
	if len(got) != len(want)+1 || got[0].Path != "." || got[0].Type != "dir" {
		t.Fatalf("got %+v", got)
	}
	for i, w := range want {
		w.UID, w.GID = uid, gid
		if !reflect.DeepEqual(got[i+1], w) {
			t.Errorf("got %+v, want %+v", got[i+1], w)
		}
	}
}

// What may not be read is listed nevertheless.
func TestTreeDenied(t *testing.T) {
	dir := t.TempDir()
	file, sub := filepath.Join(dir, "key"), filepath.Join(dir, "sub")
	if err := os.WriteFile(file, []byte("text"), 0o200); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(sub, 0o300); err != nil {
		t.Fatal(err)
	}
	got := map[string]entry{}
	unprivileged(t, func() {
		entries, err := tree(dir)
		if err != nil {
			t.Error(err)
		}
		for _, e := range entries {
			got[e.Path] = e
		}
		if _, err := tree(sub); err != nil {
			t.Error(err)
		}
	})
	if len(got) != 3 || got["."].Denied || !got["key"].Denied || !got["sub"].Denied || got["key"].Content != nil {
		t.Errorf("got %+v", got)
	}
}

// unprivileged calls f in a thread that no capability helps past a file's mode. The
// thread ends with the goroutine that has locked it.
func unprivileged(t *testing.T, f func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		err := unix.Capset(&header, &none[0])
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestReadAndWrite(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "new")
	if got := ask(t, "write", file, "text"); got != "ok\n" {
		t.Errorf("write: %q", got)
	}
	if got := ask(t, "read", file); got != "text" {
		t.Errorf("read: %q", got)
	}
	if got := ask(t, "write", dir, "text"); got != "EISDIR\n" {
		t.Errorf("write to a directory: %q", got)
	}
}

// The text arrives after "ready", and the answer tells what came before it.
func TestAwait(t *testing.T) {
	dir := t.TempDir()
	file, other := filepath.Join(dir, "file"), filepath.Join(dir, "other")
	if err := os.WriteFile(other, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	reader, writer := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- run(t.Context(), writer, []string{"await", file, "new", "10s", other})
		writer.Close()
	}()
	lines := bufio.NewScanner(reader)
	if !lines.Scan() || lines.Text() != "ready" {
		t.Fatalf("first line %q, %v", lines.Text(), lines.Err())
	}
	if err := os.WriteFile(file, []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	if !lines.Scan() {
		t.Fatalf("no answer: %v, %v", lines.Err(), <-done)
	}
	var got arrival
	if err := json.Unmarshal(lines.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got.Reads < 2 || got.Failed < 1 || got.Error == "" || got.UnixNano == 0 || got.Others[other] != "old" {
		t.Errorf("got %+v", got)
	}
}

func TestAwaitTimesOut(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	for _, want := range []string{"no such file", "without the text"} {
		err := run(t.Context(), io.Discard, []string{"await", file, "new", "5ms"})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		if err := os.WriteFile(file, []byte("old"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestMounts(t *testing.T) {
	var got []mount
	if err := json.Unmarshal([]byte(ask(t, "mounts", " / ")), &got); err != nil {
		t.Fatal(err)
	}
	if len(got) == 0 {
		t.Error("found no root")
	}
	if err := json.Unmarshal([]byte(ask(t, "mounts", "no mount has this")), &got); err != nil {
		t.Fatal(err)
	}
	if len(got) != 0 {
		t.Errorf("got %+v", got)
	}
}

func TestKill(t *testing.T) {
	// A name that no other process has, so that none is hit.
	name := filepath.Join(t.TempDir(), "refvol-probe-victim")
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(sleep, name); err != nil {
		t.Fatal(err)
	}
	victim, bystander := startNamed(t, name, "60"), startNamed(t, name, "61")
	ask(t, "kill", filepath.Base(name), "60")
	if err := victim.Wait(); err == nil || victim.ProcessState.String() != "signal: killed" {
		t.Errorf("the process ended with %v", victim.ProcessState)
	}
	if err := run(t.Context(), io.Discard, []string{"kill", filepath.Base(name), "60"}); err == nil {
		t.Error("killed nothing without an error")
	}
	ask(t, "kill", filepath.Base(name), "61")
	if err := bystander.Wait(); err == nil {
		t.Error("the process with the other argument ended before it was killed")
	}
}

// startNamed starts a program and waits until its arguments can be seen: the kernel reports that
// it has started a moment before.
func startNamed(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	path, want := fmt.Sprintf("/proc/%d/cmdline", cmd.Process.Pid), strings.Join(args, "\x00")+"\x00"
	for got := ""; got != want; {
		data, err := os.ReadFile(path)
		if err != nil || t.Context().Err() != nil {
			t.Fatalf("arguments of %q = %q, %v", args, got, err)
		}
		got = string(data)
	}
	return cmd
}
