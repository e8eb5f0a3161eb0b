package seen

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/e2e/tools/world"
	"github.com/refvol/refvol/internal/must"
)

// TestListens: the plugin listens where it says, and nowhere else. A port-forward to its pod reaches loopback
// too, so profiles are not there unless a flag asks for them.
func TestListens(t *testing.T) {
	t.Parallel()
	n := lab.NewNode(t, world.AnyPort)
	want := []string{n.Address(n.HTTPAddress), n.Address(n.StatusAddress)}
	slices.Sort(want)
	if got := listeners(t, n.PID()); !slices.Equal(got, want) {
		t.Errorf("listens at %q, want %q", got, want)
	}
	for _, address := range want {
		if answer, err := harness.Get(t.Context(), "http://"+address+"/debug/pprof/"); err != nil || answer.Status != 404 {
			t.Errorf("profiles at %s: %d, %v, %.100s", address, answer.Status, err, answer.Body)
		}
	}
	n.RestartWith("--http-address=", "--status-address=")
	if got := listeners(t, n.PID()); len(got) > 0 {
		t.Errorf("without an address it listens at %q", got)
	}
	n.RestartWith("--profiling-address=127.0.0.1:0")
	profiling, err := n.ProfilingAddress()
	if got := listeners(t, n.PID()); err != nil || !slices.Equal(got, []string{profiling}) {
		t.Errorf("listens at %q, want %q, %v", got, profiling, err)
	}
}

// listeners returns the addresses at which a process listens for TCP connections, in order; all are of IPv4 here.
func listeners(t *testing.T, pid int) []string {
	t.Helper()
	fds := must.Get(filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid)))(t)
	sockets := map[string]bool{}
	for _, fd := range fds {
		if link, err := os.Readlink(fd); err == nil { // it may be closed meanwhile
			sockets[link] = true
		}
	}
	var found []string
	for _, table := range []string{"tcp", "tcp6"} {
		text := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table)))(t)
		for line := range strings.Lines(string(text)) {
			// The number, the local and the remote address, the state, which 0A is for one that listens; the tenth field is the inode.
			fields := strings.Fields(line)
			if len(fields) < 10 || fields[3] != "0A" || !sockets["socket:["+fields[9]+"]"] {
				continue
			}
			// An address of IPv4 is a little-endian word.
			var ip [4]byte
			var port uint16
			if _, err := fmt.Sscanf(fields[1], "%02X%02X%02X%02X:%X", &ip[3], &ip[2], &ip[1], &ip[0], &port); err != nil {
				t.Errorf("it listens at %s: %v", fields[1], err)
			}
			found = append(found, netip.AddrPortFrom(netip.AddrFrom4(ip), port).String())
		}
	}
	slices.Sort(found)
	return found
}
