package integration

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestListens: the plugin listens where it says, and nowhere else. A port-forward to its pod reaches loopback
// too, so profiles are not there unless a flag asks for them.
func TestListens(t *testing.T) {
	t.Parallel()
	n := newNode(t, anyPort, anyStatusPort)
	http, err := n.HTTPAddress()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{http, n.statusAddress()}
	slices.Sort(want)
	if got := listeners(t, n.PID()); !slices.Equal(got, want) {
		t.Errorf("listens at %q, want %q", got, want)
	}
	for _, address := range want {
		if text, status, err := get(t, "http://"+address+"/debug/pprof/"); err != nil || status != 404 {
			t.Errorf("profiles at %s: %d, %v, %.100s", address, status, err, text)
		}
	}
	n.restartWith("--http-address=", "--status-address=")
	if got := listeners(t, n.PID()); len(got) > 0 {
		t.Errorf("without an address it listens at %q", got)
	}
	n.restartWith("--profiling-address=127.0.0.1:0")
	profiling, err := n.ProfilingAddress()
	if got := listeners(t, n.PID()); err != nil || !slices.Equal(got, []string{profiling}) {
		t.Errorf("listens at %q, want %q, %v", got, profiling, err)
	}
}

// listeners returns the addresses at which a process listens for TCP connections, in order.
func listeners(t *testing.T, pid int) []string {
	t.Helper()
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	sockets := map[string]bool{}
	for _, fd := range fds {
		if link, err := os.Readlink(fd); err == nil { // it may be closed meanwhile
			sockets[link] = true
		}
	}
	const listening = "0A"
	var found []string
	for _, table := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			// The number, the local and the remote address, the state; the inode is the tenth field.
			fields := strings.Fields(line)
			if len(fields) > 9 && fields[3] == listening && sockets["socket:["+fields[9]+"]"] {
				found = append(found, localAddress(t, fields[1]))
			}
		}
	}
	slices.Sort(found)
	return found
}

// localAddress reads an address as /proc/net/tcp has it: words in the machine's order of bytes, which is
// little-endian on all that the plugin is built for, and a port.
func localAddress(t *testing.T, text string) string {
	t.Helper()
	host, port, _ := strings.Cut(text, ":")
	raw, err := hex.DecodeString(host)
	if err != nil {
		t.Fatal(err)
	}
	for word := range slices.Chunk(raw, 4) {
		slices.Reverse(word)
	}
	ip, ok := netip.AddrFromSlice(raw)
	var number uint16
	if _, err := fmt.Sscanf(port, "%X", &number); err != nil || !ok {
		t.Fatalf("%q is no address: %v", text, err)
	}
	return netip.AddrPortFrom(ip, number).String()
}
