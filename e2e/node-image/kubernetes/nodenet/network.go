package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

const (
	// confDir is where the node's container runtime looks for its CNI
	// configuration; the pod network is ready as soon as there is one.
	confDir = "/etc/cni/net.d"
	// confFile is the configuration's name.
	confFile = "10-nodenet.conflist"
	// defaultMTU is used where the node's own interface can't be read.
	defaultMTU = 1500
)

// object shortens the literals of the CNI configuration.
type object = map[string]any

// cniConfig renders the configuration for the pods of one node, whose addresses
// come from podCIDR.
func cniConfig(podCIDR string, mtu int) ([]byte, error) {
	return json.MarshalIndent(object{
		"cniVersion": "0.4.0",
		"name":       "nodenet",
		"plugins": []object{
			{
				"type": "ptp",
				"mtu":  mtu,
				"ipam": object{
					"type": "host-local",
					// Addresses are forgotten with the node's /run, as its pods are.
					"dataDir": "/run/cni-ipam-state",
					"ranges":  [][]object{{{"subnet": podCIDR}}},
					"routes":  []object{{"dst": "0.0.0.0/0"}},
				},
			},
			{"type": "portmap", "capabilities": object{"portMappings": true}},
		},
	}, "", "  ")
}

// writeConfig writes the configuration into dir, unless it is there already. The
// runtime reads the directory at any time, so the file appears whole.
func writeConfig(dir, podCIDR string, mtu int) error {
	config, err := cniConfig(podCIDR, mtu)
	if err != nil {
		return fmt.Errorf("render the CNI configuration: %w", err)
	}
	file := filepath.Join(dir, confFile)
	if have, err := os.ReadFile(file); err == nil && bytes.Equal(have, config) {
		return nil
	}
	// The runtime passes over names that don't end in .conf, .conflist or .json.
	partial := filepath.Join(dir, confFile+".partial")
	if err := os.WriteFile(partial, config, 0o644); err != nil {
		return fmt.Errorf("write the CNI configuration: %w", err)
	}
	if err := os.Rename(partial, file); err != nil {
		return fmt.Errorf("put the CNI configuration in place: %w", err)
	}
	return nil
}

// mtu returns the MTU of the node's interface.
func mtu(name string) int {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return defaultMTU
	}
	return link.Attrs().MTU
}

// addRoute leads packets for node's pods to node's own address.
func addRoute(node *corev1.Node) error {
	_, pods, err := net.ParseCIDR(node.Spec.PodCIDR)
	if err != nil {
		return fmt.Errorf("parse its pod range: %w", err)
	}
	for _, address := range node.Status.Addresses {
		ip := net.ParseIP(address.Address)
		if address.Type != corev1.NodeInternalIP || ip.To4() == nil {
			continue
		}
		if err := netlink.RouteReplace(&netlink.Route{Dst: pods, Gw: ip}); err != nil {
			return fmt.Errorf("route %s by %s: %w", pods, ip, err)
		}
		return nil
	}
	return fmt.Errorf("it has no IPv4 address yet, so nothing leads to %s", pods)
}

// confine keeps the pods of subnet from using the default route. Until kube-proxy on a node knows a new
// Service, packets to its address would leave the cluster by that route, and something else could answer.
func confine(subnet string) error {
	_, pods, err := net.ParseCIDR(subnet)
	if err != nil {
		return fmt.Errorf("parse the range of all pods: %w", err)
	}
	known := netlink.NewRule()
	known.Priority, known.Src, known.Table, known.SuppressPrefixlen = 1000, pods, unix.RT_TABLE_MAIN, 0
	rest := netlink.NewRule()
	rest.Priority, rest.Src, rest.Type = 1001, pods, unix.RTN_UNREACHABLE
	for _, rule := range []*netlink.Rule{known, rest} {
		if err := netlink.RuleAdd(rule); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("add the rule %q: %w", rule, err)
		}
	}
	return nil
}

// masquerade gives packets that leave the pod network the node's address.
func masquerade(ctx context.Context, subnet string) error {
	iptables := func(action string) ([]byte, error) {
		return exec.CommandContext(ctx, "iptables", "--wait", "--table", "nat", action, "POSTROUTING",
			"--source", subnet, "!", "--destination", subnet, "--jump", "MASQUERADE").CombinedOutput()
	}
	if _, err := iptables("--check"); err == nil {
		return nil
	}
	if out, err := iptables("--append"); err != nil {
		return fmt.Errorf("masquerade %s: %w: %s", subnet, err, bytes.TrimSpace(out))
	}
	return nil
}
