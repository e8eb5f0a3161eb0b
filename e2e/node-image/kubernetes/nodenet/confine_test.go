package main

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// inside is set in the process that TestConfine starts.
const inside = "NODENET_TEST_INSIDE"

// Pods reach pods and nodes, and nothing that only the default route leads to. The test is in
// namespaces of its own.
func TestConfine(t *testing.T) {
	if os.Getenv(inside) == "" {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestConfine$")
		cmd.Env = append(os.Environ(), inside+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	addLinks(t, map[string]string{"pods": "10.244.1.1/24", "eth0": "172.17.0.2/16"})
	for destination, gateway := range map[string]string{"0.0.0.0/0": "172.17.0.1", "10.244.2.0/24": "172.17.0.3"} {
		_, dst, err := net.ParseCIDR(destination)
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.RouteAdd(&netlink.Route{Dst: dst, Gw: net.ParseIP(gateway)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	service := net.ParseIP("10.96.0.10")
	if err := fromPod(service); err != nil {
		t.Fatalf("to %s without the rules: %v", service, err)
	}
	for range 2 { // nodenet may start again
		if err := confine("10.244.0.0/16"); err != nil {
			t.Fatal(err)
		}
	}
	for _, address := range []string{"10.244.1.6", "10.244.2.5", "172.17.0.3"} {
		if err := fromPod(net.ParseIP(address)); err != nil {
			t.Errorf("to %s: %v", address, err)
		}
	}
	if err := fromPod(service); !errors.Is(err, unix.ENETUNREACH) {
		t.Errorf("to %s: %v", service, err)
	}
	if _, err := netlink.RouteGet(service); err != nil {
		t.Errorf("from the node to %s: %v", service, err)
	}
}

// fromPod asks the kernel where a packet of a pod goes.
func fromPod(destination net.IP) error {
	_, err := netlink.RouteGetWithOptions(destination, &netlink.RouteGetOptions{Iif: "pods", SrcAddr: net.ParseIP("10.244.1.5")})
	return err
}

// addLinks makes a pair of interfaces and sets them up, each with its address.
func addLinks(t *testing.T, addresses map[string]string) {
	t.Helper()
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "pods"}, PeerName: "eth0"}
	if err := netlink.LinkAdd(pair); err != nil {
		t.Fatalf("add pods and eth0: %v", err)
	}
	for name, address := range addresses {
		link, err := netlink.LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		a, err := netlink.ParseAddr(address)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(netlink.AddrAdd(link, a), netlink.LinkSetUp(link)); err != nil {
			t.Fatalf("set up %s: %v", name, err)
		}
	}
}
