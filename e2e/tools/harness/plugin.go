// Package harness runs the plugin's real binary the way a node does, without a node: it plays the kubelet towards the
// CSI socket and looks at what containers would see.
//
// It imports nothing of the plugin: what it knows is the contract, that is, the command line, CSI, and files.
package harness

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/refvol/refvol/e2e/tools/process"
)

const (
	// DriverName is the name that the plugin serves under.
	DriverName = "csi.refvol.dev"
	// NodeName is the node that it is told it runs on, if PluginOptions says nothing else.
	NodeName = "node-1"

	// patience is the kubelet's own for a CSI call, and enough for a busy machine with the race detector in the plugin.
	patience = 2 * time.Minute
)

// PluginOptions says what to start. Binary, Kubeconfig and Dir are required.
type PluginOptions struct {
	// Binary is the plugin's program.
	Binary string
	// Kubeconfig is what the plugin reaches the API server with.
	Kubeconfig string
	// Dir is for everything the plugin keeps; it must be empty, and short, as it holds sockets.
	Dir string
	// Pods gets the pods of the volumes that are published; nil: nobody knows of them, so that a restarted plugin
	// waits for another publish.
	Pods Pods
	// NodeName is the node's; empty: the constant of this name.
	NodeName string
	// Args are added to the command line; of a repeated flag the last one counts.
	Args []string
	// Env is added to the environment, which is this process's own.
	Env []string
	// BeforeFork is process.Options' own, called at each start.
	BeforeFork func() error
}

// Plugin is the plugin on a pretended node: its directories, and the process while it runs. Calls over Node
// and what builds on it may run at once; the methods that start or end the process must not run beside each other.
type Plugin struct {
	opts PluginOptions
	proc *process.Process
	// conn is the connection to the run that is, or was last; on that one, calls fail.
	conn atomic.Pointer[grpc.ClientConn]
	// logged is how long the log was when the process started.
	logged int
	// leakedBy has an error for each method of which an answer leaked something.
	leakedBy sync.Map
	// stored is what Pods has got, by pod and volume; storing is held meanwhile.
	stored  sync.Map
	storing sync.Mutex
}

// StartPlugin makes the node's directories and starts the plugin; see Plugin.Start.
func StartPlugin(ctx context.Context, o PluginOptions) (*Plugin, error) {
	o.NodeName = cmp.Or(o.NodeName, NodeName)
	p := &Plugin{opts: o}
	for _, dir := range []string{p.KubeletDir(), p.registrationDir()} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return nil, fmt.Errorf("make the node's directories: %w", err)
		}
	}
	return p, p.Start(ctx)
}

// KubeletDir is the pretended kubelet's root directory.
func (p *Plugin) KubeletDir() string { return filepath.Join(p.opts.Dir, "kubelet") }

// registrationDir is where the kubelet would look for plugins.
func (p *Plugin) registrationDir() string { return filepath.Join(p.opts.Dir, "registry") }

// Socket is the path of the CSI socket.
func (p *Plugin) Socket() string { return filepath.Join(p.opts.Dir, "csi.sock") }

// LogPath is the file that all runs of the process append their output to.
func (p *Plugin) LogPath() string { return filepath.Join(p.opts.Dir, "plugin.log") }

// PID is the process id of the run that is, or was last.
func (p *Plugin) PID() int { return p.proc.PID() }

// Process is the run that is, or was last.
func (p *Plugin) Process() *process.Process { return p.proc }

// Start starts the process, again after Kill or Terminate, with the same directories, and returns when it answers on
// its socket. The error has the last lines of its log.
func (p *Plugin) Start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if info, err := os.Stat(p.LogPath()); err == nil {
		p.logged = int(info.Size())
	}
	if err := p.bindPods(); err != nil {
		return err
	}
	proc, err := process.Start(process.Options{
		Path: p.opts.Binary,
		Args: append([]string{
			"serve",
			"--endpoint=unix://" + p.Socket(),
			"--driver-name=" + DriverName,
			"--node-name=" + p.opts.NodeName,
			"--kubeconfig=" + p.opts.Kubeconfig,
			"--kubelet-dir=" + p.KubeletDir(),
			"--registration-dir=" + p.registrationDir(),
			"--kubelet-socket-path=" + p.Socket(),
			"--http-address=",
			"--status-address=",
		}, p.opts.Args...),
		// A stack dump shows all goroutines, and a race shows in the exit status as well as in the log. The plugin
		// collects garbage as it does on a node, whatever the tests do.
		Env:        slices.Concat(os.Environ(), []string{"GOTRACEBACK=all", "GORACE=exitcode=66 atexit_sleep_ms=0", "GOGC="}, p.opts.Env),
		Log:        p.LogPath(),
		BeforeFork: p.opts.BeforeFork,
	})
	if err != nil {
		return err
	}
	p.proc = proc
	if err := p.connect(); err != nil {
		return errors.Join(err, p.Kill())
	}
	err = proc.Await(ctx, func(ctx context.Context) error {
		_, err := csi.NewIdentityClient(p.conn.Load()).Probe(ctx, &csi.ProbeRequest{})
		return err
	})
	if err != nil {
		return errors.Join(err, p.Kill())
	}
	return nil
}

// bindPods makes the pods' directory a mount of its own whose mounts reach others, as the plugin's pod has it. A
// mount that is there already stays as it is.
func (p *Plugin) bindPods() error {
	dir := p.podsDir()
	mounts, err := MountsBelow(dir)
	if err != nil || slices.ContainsFunc(mounts, p.isPods) {
		return err
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("make the pods' directory: %w", err)
	}
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s: %w", dir, err)
	}
	return os.NewSyscallError("mount "+dir, unix.Mount("", dir, "", unix.MS_SHARED, ""))
}

func (p *Plugin) podsDir() string { return filepath.Join(p.KubeletDir(), "pods") }

// isPods says whether a mount is the pods' directory itself.
func (p *Plugin) isPods(m Mount) bool { return m.Target == p.podsDir() }

// AddArgs adds to the command line of the next Start; of a repeated flag the last one counts.
func (p *Plugin) AddArgs(args ...string) { p.opts.Args = slices.Concat(p.opts.Args, args) }

// connect dials again soon after a failure: the socket appears within milliseconds, and the default back-off starts
// with a second.
func (p *Plugin) connect() error {
	conn, err := grpc.NewClient("unix://"+p.Socket(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(p.intercept),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1.5, MaxDelay: 200 * time.Millisecond},
			MinConnectTimeout: time.Second,
		}))
	if err != nil {
		return fmt.Errorf("connect to %s: %w", p.Socket(), err)
	}
	p.conn.Store(conn)
	return nil
}

// CSI is a client on the plugin's socket.
func (p *Plugin) CSI() csi.NodeClient { return csi.NewNodeClient(p.conn.Load()) }

// Kill ends the process with SIGKILL, as a crash would. It does nothing if the process has ended.
func (p *Plugin) Kill() error { return p.stop(context.Background(), syscall.SIGKILL) }

// Terminate ends the process with SIGTERM, as the kubelet does, and fails if it does not end with status 0 in time.
func (p *Plugin) Terminate(ctx context.Context) error {
	if err := p.stop(ctx, syscall.SIGTERM); err != nil {
		return err
	}
	if code := p.proc.ExitCode(); code != 0 {
		return fmt.Errorf("plugin ended with status %d on SIGTERM\n%s", code, p.LogTail())
	}
	return nil
}

// stop sends a signal, waits for the end of the process, and ends the connection.
func (p *Plugin) stop(ctx context.Context, signal syscall.Signal) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := p.proc.Stop(ctx, signal)
	if conn := p.conn.Load(); conn != nil {
		_ = conn.Close() // fails only if it was closed already
	}
	return err
}

// Close kills the process if it runs, and detaches what mounts it left, so that the directory can be removed.
func (p *Plugin) Close() error {
	err := p.Kill()
	mounts, listErr := MountsBelow(p.opts.Dir)
	err = errors.Join(err, listErr)
	for _, m := range slices.Backward(mounts) { // those on others first
		err = errors.Join(err, os.NewSyscallError("umount2 "+m.Target, unix.Unmount(m.Target, unix.MNT_DETACH)))
	}
	return err
}

// runLog returns what this run of the plugin has logged.
func (p *Plugin) runLog() ([]byte, error) {
	log, err := os.ReadFile(p.LogPath())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return log[min(p.logged, len(log)):], err
}

// LogTail returns the last lines of the log, and how the process ended if it did.
func (p *Plugin) LogTail() string {
	return fmt.Sprintf("%s\n(process %d: %s)", process.Tail(p.LogPath(), 40), p.PID(), p.proc.State())
}

// VolumeMounts returns the mounts below the pods' directory.
func (p *Plugin) VolumeMounts() ([]Mount, error) {
	mounts, err := MountsBelow(p.KubeletDir())
	return slices.DeleteFunc(mounts, p.isPods), err
}

// Descriptors returns what the open file descriptors of the running process are, a string each as in /proc/PID/fd;
// the numbers of sockets and pipes are left out.
func (p *Plugin) Descriptors() ([]string, error) { return descriptors(p.PID()) }

func descriptors(pid int) ([]string, error) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var open []string
	for _, e := range entries {
		link, err := os.Readlink(filepath.Join(dir, e.Name()))
		if errors.Is(err, os.ErrNotExist) {
			continue // closed meanwhile, such as the descriptor of dir itself
		}
		if err != nil {
			return nil, err
		}
		open = append(open, numbered.ReplaceAllString(link, "$1"))
	}
	return open, nil
}

// numbered is a link such as socket:[4711], of which another run has another.
var numbered = regexp.MustCompile(`^(\w+):\[\d+\]$`)
