# Prints the tests that failed in the output of go test, with -v or without, and their messages. The end of the output shows only a part
# of them, so each message is cut. said has the messages of each test that has not ended, and raw is how many more lines to print as they are.
# With -v heads=3 it prints only how the first three messages of each test begin, each in one line.
function say(text) {
	text = substr(text, 1, heads ? 400 : 240)
	if (!failed) said[name] = said[name] text "\n"
	else show(name, text)
}
function show(name, text) {
	if (!heads) print text
	else {
		begins = text ~ /^ +[^ ]+\.go:[0-9]+: /
		sub(/^ */, "", text)
		if (begins) {
			flush()
			if (shown[name]++ < heads) head = name ": " text
		} else if (head != "") head = head " " text
	}
}
function flush() {
	if (head != "") print substr(head, 1, 400)
	head = ""
}
function showAll(name,   i, n, lines) {
	n = split(said[name], lines, "\n")
	for (i = 1; i < n; i++) show(name, lines[i])
	delete said[name]
}
function raise(lines) { if (!heads) print substr($0, 1, 240); raw = lines }
{ match($0, /^ */) }
indent >= 0 && RLENGTH > indent && name != "" { # a message goes on, whatever it says
	if (more-- > 0) say($0)
	next
}
raw > 0 { raise(raw - 1); next }
/^=== (RUN|PAUSE|CONT|NAME) / {
	name = $3; failed = 0; indent = -1
	if ($2 == "RUN") delete said[name]
	next
}
/^ *--- FAIL: / {
	if (!heads) print
	showAll($3)
	name = $3; failed = 1; indent = -1
	next
}
/^ *--- (PASS|SKIP): / { delete said[$3]; name = ""; next }
/^ +[^ ]+\.go:[0-9]+: / { if (name != "") { indent = RLENGTH; more = 12; say($0) }; next }
/^(panic|fatal error): / { # of a time limit too: the tests that were running said most of it
	for (running in said) {
		if (!heads) print "--- not ended: " running
		showAll(running)
	}
	raise(40)
	next
}
/^FAIL: / || /DATA RACE/ || /^ThreadSanitizer/ || /\[FAIL\]/ { raise(40); next }
/^(FAIL\t|make.* Error )/ || /^[^ ]+\.go:[0-9]+:[0-9]+: / || /^[^ ]+: .* FAILED / { raise(0); next }
/^(ok  \t|FAIL$|PASS$)/ { name = ""; indent = -1 }
END { flush() }
