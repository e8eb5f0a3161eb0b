package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/api/validation"
	logsapi "k8s.io/component-base/logs/api/v1"

	"github.com/refvol/refvol/pkg/authz"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/status"
	"github.com/refvol/refvol/pkg/taint"
	"github.com/refvol/refvol/pkg/volume"
)

// serveOptions are the flags of serve.
type serveOptions struct {
	endpoint          string
	driverName        string
	nodeName          string
	kubeconfig        string
	registrationDir   string
	kubeletSocketPath string
	kubeletDir        string
	resyncInterval    time.Duration
	changeDetection   string
	identity          string
	crossNamespace    bool
	publishWait       time.Duration
	defaultSpread     time.Duration
	maxVolumeSize     string
	maxTotalSize      string
	maxCachedSize     string
	selinuxContext    string
	httpAddress       string
	profilingAddress  string
	statusAddress     string
	startupTaint      string
	openReceipts      bool
	logging           *logsapi.LoggingConfiguration
}

func newServeOptions() *serveOptions {
	return &serveOptions{
		endpoint:        "unix:///csi/csi.sock",
		driverName:      "csi.refvol.dev",
		nodeName:        os.Getenv("NODE_NAME"),
		kubeletDir:      "/var/lib/kubelet",
		resyncInterval:  time.Minute,
		changeDetection: string(manager.Watch),
		identity:        authz.IdentityPlugin,
		publishWait:     100 * time.Second,
		maxVolumeSize:   "32Mi",
		maxTotalSize:    "512Mi",
		maxCachedSize:   "256Mi",
		httpAddress:     ":9810",
		statusAddress:   status.DefaultAddress,
		openReceipts:    true,
		logging:         logsapi.NewLoggingConfiguration(),
	}
}

func (o *serveOptions) addFlags(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&o.endpoint, "endpoint", o.endpoint, "CSI socket to serve on")
	fs.StringVar(&o.driverName, "driver-name", o.driverName, "name of the CSI driver, as in the CSIDriver object")
	fs.StringVar(&o.nodeName, "node-name", o.nodeName, "name of this node's Node object (default $NODE_NAME)")
	fs.StringVar(&o.kubeconfig, "kubeconfig", o.kubeconfig, "kubeconfig file; empty: the pod's service account")
	fs.StringVar(&o.registrationDir, "registration-dir", o.registrationDir, "directory where the kubelet looks for plugins; empty: do not register")
	fs.StringVar(&o.kubeletSocketPath, "kubelet-socket-path", o.kubeletSocketPath, "path of the CSI socket as the kubelet sees it; empty: as in --endpoint")
	fs.StringVar(&o.kubeletDir, "kubelet-dir", o.kubeletDir, "root directory of the kubelet; target paths must lie below it")
	fs.DurationVar(&o.resyncInterval, "resync-interval", o.resyncInterval, "how often a volume is compared with its objects; with --change-detection=Watch, one that is current, and needs no right that can be withdrawn, ten times more rarely")
	fs.StringVar(&o.changeDetection, "change-detection", o.changeDetection, "how changes are noticed: Watch (at once), or at each resync with Cache (objects are kept for the TTL of the Node) or Get")
	fs.StringVar(&o.identity, "identity", o.identity, "whose rights read the objects: plugin (its own account's), pod (each pod's service account's), or node (this node's: what a pod's own spec names; Kubernetes 1.36)")
	fs.BoolVar(&o.crossNamespace, "cross-namespace", o.crossNamespace, "show objects of other namespaces to pods whose service account may get them there")
	fs.DurationVar(&o.defaultSpread, "default-spread", o.defaultSpread, "spread of volumes without that attribute, from 1s to 1h; 0s: none")
	fs.DurationVar(&o.publishWait, "publish-wait", o.publishWait, "how long a publish waits for missing objects and keys; the kubelet gives up after 120s")
	fs.StringVar(&o.maxVolumeSize, "max-volume-size", o.maxVolumeSize, "most memory that the files of one volume may take, in pages")
	fs.StringVar(&o.maxTotalSize, "max-total-size", o.maxTotalSize, "most memory that the file systems of all volumes of the node may hold (docs/limits.md#one-node)")
	fs.StringVar(&o.maxCachedSize, "max-cached-size", o.maxCachedSize, "most memory that the objects of all volumes of the node may take for a new volume to be accepted (docs/limits.md#one-node)")
	fs.StringVar(&o.selinuxContext, "selinux-context", o.selinuxContext, "SELinux context of the volumes' file systems; empty: none")
	fs.StringVar(&o.httpAddress, "http-address", o.httpAddress, "address that serves /metrics, /healthz and /readyz; empty: none")
	fs.StringVar(&o.profilingAddress, "profiling-address", o.profilingAddress, "loopback address that serves pprof's profiles below /debug/pprof/, such as 127.0.0.1:6060; empty: none")
	fs.StringVar(&o.statusAddress, "status-address", o.statusAddress, "loopback address that serves what the command status prints; empty: none")
	fs.StringVar(&o.startupTaint, "startup-taint", o.startupTaint, "key of the taints to remove from the node in the ten minutes after the kubelet has confirmed the driver's registration; empty: none")
	fs.BoolVar(&o.openReceipts, "open-receipts", o.openReceipts, "record which files are opened, for status and kubectl refvol converged --opened")
	logsapi.AddFlags(o.logging, fs)
}

// sizes are --max-volume-size, --max-total-size and --max-cached-size in bytes.
type sizes struct{ perVolume, total, cached int64 }

func (o *serveOptions) sizes() (s sizes, err error) {
	parse := func(flag, text string) int64 {
		quantity, parseErr := resource.ParseQuantity(text)
		if parseErr != nil || quantity.Sign() <= 0 {
			err = errors.Join(err, fmt.Errorf("--%s: Invalid value: %q: must be a positive quantity such as 32Mi", flag, text))
			return 0
		}
		return quantity.Value()
	}
	s.perVolume, s.total = parse("max-volume-size", o.maxVolumeSize), parse("max-total-size", o.maxTotalSize)
	s.cached = parse("max-cached-size", o.maxCachedSize)
	if err == nil && s.total < s.perVolume {
		err = fmt.Errorf("--max-total-size: Invalid value: %q: must not be less than --max-volume-size, which is %s", o.maxTotalSize, o.maxVolumeSize)
	}
	return s, err
}

// validate returns an error for values with which serve cannot start, before anything is tried. The chart refuses the same values of its own
// with the same sentences, and a test in deploy/ compares them.
func (o *serveOptions) validate() error {
	var errs []error
	only := func(flag, value string, supported ...string) {
		if !slices.Contains(supported, value) {
			errs = append(errs, fmt.Errorf(`--%s: Unsupported value: %q: supported by this version: "%s"`, flag, value, strings.Join(supported, `", "`)))
		}
	}
	only("change-detection", o.changeDetection, string(manager.Watch), string(manager.Cache), string(manager.Get))
	only("identity", o.identity, authz.IdentityPlugin, authz.IdentityPod, authz.IdentityNode)
	_, err := o.sizes()
	errs = append(errs, err, validateProfilingAddress(o.profilingAddress), validateStatusAddress(o.statusAddress), o.validateStartupTaint())
	if o.resyncInterval <= 0 {
		errs = append(errs, fmt.Errorf("--resync-interval: Invalid value: %s: must be positive", o.resyncInterval))
	}
	if o.publishWait < 0 {
		errs = append(errs, fmt.Errorf("--publish-wait: Invalid value: %s: must not be negative", o.publishWait))
	}
	if err := volume.CheckSpread(o.defaultSpread); err != nil {
		errs = append(errs, fmt.Errorf("--default-spread: Invalid value: %s: %w", o.defaultSpread, err))
	}
	if o.nodeName == "" {
		errs = append(errs, errors.New("--node-name: Required value: or set NODE_NAME"))
	} else if problems := validation.NameIsDNSSubdomain(o.nodeName, false); o.identity == authz.IdentityNode && len(problems) > 0 {
		errs = append(errs, fmt.Errorf("--node-name: Invalid value: %q: must be the name of a Node object: %s", o.nodeName, strings.Join(problems, "; ")))
	}
	if o.identity == authz.IdentityNode && o.crossNamespace {
		errs = append(errs, errors.New("--cross-namespace: Forbidden: with --identity=node: a node may read only what the specs of its pods name, and these name objects of their own namespaces"))
	}
	return errors.Join(errs...)
}

func (o *serveOptions) validateStartupTaint() error {
	if o.startupTaint == "" {
		return nil
	}
	if err := taint.ValidateKey(o.startupTaint); err != nil {
		return fmt.Errorf("--startup-taint: %w", err)
	}
	if o.registrationDir == "" {
		return errors.New("--startup-taint: needs --registration-dir: the taint goes when the kubelet has confirmed the registration")
	}
	return nil
}
