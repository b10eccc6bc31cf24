-- Requests for wrk. Arguments: mode, token, body, pause of a connection before each (ms), number of
-- requests after which to end (0: never).
--   new     a fresh key each time            same    one key for every 100 requests
--   replay  one key again and again          mix     70 % new, 25 % a recent key, 5 % another body
--   floor   as new, for a server without the protocol

local ffi = require("ffi")
ffi.cdef("int getpid(void); int kill(int pid, int signal);")
local SIGINT = 2

local sequence, mode, headers, body, other, base, most = 0

function init(arguments)
    mode, body = arguments[1], arguments[3]
    headers = {["Authorization"] = "Bearer " .. arguments[2], ["Content-Type"] = "application/json"}
    other = body:gsub('"name": ?"', '"name":"Other ')
    -- Every run has its own keys: the address of a new table differs between processes.
    local pause = tonumber(arguments[4])
    most = tonumber(arguments[5])
    if pause > 0 then
        function delay() return pause end
    end
    base = os.time() .. "-" .. tostring({}):sub(10) .. "-"
end

local function key()
    if mode == "replay" then return base .. "0" end
    if mode == "same" then return base .. math.floor(sequence / 100) end
    if mode == "mix" then
        local turn = sequence % 20
        -- 14 of 20 are new; the recent keys are some requests old: settled or in flight.
        if turn >= 14 then return base .. (sequence - 10 - turn % 4) end
    end
    return base .. sequence
end

function request()
    sequence = sequence + 1
    -- wrk runs for a time; interrupted, it ends within 0.1 s and reports as always.
    if sequence == most then ffi.C.kill(ffi.C.getpid(), SIGINT) end
    headers["Idempotency-Key"] = key()
    local sent = body
    if mode == "mix" and sequence % 20 == 19 and sequence > 40 then sent = other end
    return wrk.format("POST", "/v1/groups", headers, sent)
end
