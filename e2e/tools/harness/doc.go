// Package harness runs the plugin's real binary the way a node does, without a
// node: it plays the kubelet towards the CSI socket and looks at what containers
// would see.
//
// It enters the sandbox that everything runs in, and owns the plugin's
// process and its directories. It imports nothing of the plugin: what it knows is
// the contract, that is, the command line, CSI, and files.
package harness
