package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// loginDeadline bounds each wait of a test, for one that would wait forever.
const loginDeadline = 20 * time.Second

// begin runs a command until the test ends, and returns the lines that it writes.
func begin(t *testing.T, args ...string) *bufio.Scanner {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	reader, writer := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := run(ctx, writer, args)
		writer.CloseWithError(err)
		done <- err
	}()
	late := time.AfterFunc(loginDeadline, func() { reader.CloseWithError(fmt.Errorf("%q: not within %s", args, loginDeadline)) })
	t.Cleanup(func() {
		late.Stop()
		stop()
		reader.Close()
		if err := <-done; err != nil {
			t.Errorf("%q: %v", args, err)
		}
	})
	return bufio.NewScanner(reader)
}

// call sends a request to a database and returns its answer.
func call(t *testing.T, method, url, body string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %d, %v", method, url, response.StatusCode, err)
	}
	return string(text)
}

// awaitLogins asks a database for the logins of its only user until they are as wanted.
func awaitLogins(t *testing.T, url string, wanted func(logins) bool) logins {
	t.Helper()
	user, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(loginDeadline); ; {
		users := map[string]logins{}
		if err := json.Unmarshal([]byte(call(t, http.MethodGet, url+"/logins", "")), &users); err != nil {
			t.Fatal(err)
		}
		if wanted(users[user]) {
			return users[user]
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %s: %+v", loginDeadline, users)
		}
	}
}

// The client reads its file for each login. The database refuses what it doesn't accept at that
// moment, and both count that.
func TestLogins(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	set := func(password string) {
		if err := os.WriteFile(file+".new", []byte(password), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	set("one")
	lines := begin(t, "database", "127.0.0.1:0")
	if !lines.Scan() {
		t.Fatal(lines.Err())
	}
	url := "http://" + lines.Text()
	call(t, http.MethodPut, url+"/passwords", "one\ntwo\n")
	failures := begin(t, "client", url, file)
	awaitLogins(t, url, func(l logins) bool { return l.Accepted > 1 })
	set("two")
	// One that is under way has the old password.
	before := awaitLogins(t, url, func(logins) bool { return true })
	awaitLogins(t, url, func(l logins) bool { return l.Accepted > before.Accepted })
	call(t, http.MethodPut, url+"/passwords", "two")
	before = awaitLogins(t, url, func(logins) bool { return true })
	got := awaitLogins(t, url, func(l logins) bool { return l.Accepted > before.Accepted })
	if got.Refused != 0 {
		t.Errorf("%+v, though the password was in the file before", got)
	}

	call(t, http.MethodPut, url+"/passwords", "three")
	awaitLogins(t, url, func(l logins) bool { return l.Refused > 0 })
	if !failures.Scan() {
		t.Fatal(failures.Err())
	}
	var f failure
	if err := json.Unmarshal(failures.Bytes(), &f); err != nil {
		t.Fatal(err)
	}
	if f.Failed != 1 || f.Logins <= got.Accepted || f.Reason != "Unauthorized" {
		t.Errorf("the client tells %+v after %+v", f, got)
	}

	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	for !strings.Contains(failures.Text(), "no such file") {
		if !failures.Scan() {
			t.Fatal(failures.Err())
		}
	}
}

// Until the network leads to the database, something else may answer. That is no login, and the
// client doesn't stay with it.
func TestClientLeavesAStranger(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("one"), 0o600); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	connections, requests := map[string]bool{}, 0
	again := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		mu.Lock()
		defer mu.Unlock()
		connections[r.RemoteAddr] = true
		if requests++; requests == 2 {
			close(again)
		}
	}))
	defer server.Close()
	ended := make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	var out strings.Builder
	go func() { ended <- run(ctx, &out, []string{"client", server.URL, file}) }()
	<-again
	stop()
	if err := <-ended; err != nil || out.Len() > 0 {
		t.Errorf("got %q, %v", out.String(), err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(connections) < 2 {
		t.Errorf("%d requests on %d connection", requests, len(connections))
	}
}

// What can't be reached from the start is no failed login.
func TestClientWaitsForDatabase(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("one"), 0o600); err != nil {
		t.Fatal(err)
	}
	tried, ended := make(chan struct{}), make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	address := refuse(t, tried)
	var out strings.Builder
	go func() { ended <- run(ctx, &out, []string{"client", "http://" + address, file}) }()
	<-tried
	<-tried
	stop()
	if err := <-ended; err != nil || out.Len() > 0 {
		t.Errorf("got %q, %v", out.String(), err)
	}
}

// refuse closes each connection at once, and tells of it.
func refuse(t *testing.T, tried chan<- struct{}) (address string) {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conn.Close()
			select {
			case tried <- struct{}{}:
			case <-t.Context().Done():
				return
			}
		}
	}()
	return listener.Addr().String()
}
